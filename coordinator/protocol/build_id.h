// Which build of the program this is. Agents of other hosts must run the same
// one: plans, messages and numerics of two builds may differ.

#ifndef MILLRACE_COORDINATOR_PROTOCOL_BUILD_ID_H_
#define MILLRACE_COORDINATOR_PROTOCOL_BUILD_ID_H_

#include <string>

namespace millrace {

// The linker's hash over this executable, in hexadecimal. Empty if it was
// linked without one.
std::string BuildId();

}  // namespace millrace

#endif  // MILLRACE_COORDINATOR_PROTOCOL_BUILD_ID_H_
