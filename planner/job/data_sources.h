// Reads and writes data.sources, the one list of sections in a job, and
// evaluation.sets, whose sets may be such sections.

#ifndef MILLRACE_PLANNER_JOB_DATA_SOURCES_H_
#define MILLRACE_PLANNER_JOB_DATA_SOURCES_H_

#include <map>
#include <string>
#include <vector>

#include "planner/job/job.h"
#include "planner/text/yaml_tree.h"

namespace millrace {

struct SourceProblem {
  int line = 0;
  std::string path;  // "data.sources[1].weight".
  std::string what;  // "expected ..., found ...".
};

// Appends what is wrong to `problems`; if nothing is, returns the sources.
std::vector<DataSourceSpec> ReadDataSources(
    const YamlTree& tree, std::vector<SourceProblem>* problems);

// Likewise. A set that is a list of globs becomes a source of format "text".
std::map<std::string, DataSourceSpec> ReadDataSets(
    const YamlTree& tree, std::vector<SourceProblem>* problems);

// As one line of YAML.
std::string DataSourcesToYaml(const std::vector<DataSourceSpec>& sources);
std::string DataSetsToYaml(const std::map<std::string, DataSourceSpec>& sets);

}  // namespace millrace

#endif  // MILLRACE_PLANNER_JOB_DATA_SOURCES_H_
