// The report page without its data: page.html with the style sheet and scripts
// of this folder put in at build time, so that the page needs no other file.

#ifndef MILLRACE_COORDINATOR_REPORT_PAGE_PAGE_H_
#define MILLRACE_COORDINATOR_REPORT_PAGE_PAGE_H_

#include "absl/strings/string_view.h"

namespace millrace {

// Contains "@REPORT_DATA@" once, where the JSON of report_data.h goes.
absl::string_view ReportPageTemplate();

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_REPORT_PAGE_PAGE_H_
