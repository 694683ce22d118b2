// Every layout of a small space, which searches are held to.

#ifndef MILLRACE_TESTS_PLANNER_SEARCH_PLANNED_LAYOUTS_H_
#define MILLRACE_TESTS_PLANNER_SEARCH_PLANNED_LAYOUTS_H_

#include <cstdint>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/search/all_axes_space.h"

namespace millrace {

inline std::vector<Layout> EnumeratePlannedLayouts(const PlannedSpace& space) {
  std::vector<Layout> layouts;
  for (const Layout& sharding : space.Shardings()) {
    for (const int32_t pipeline : space.Pipelines(sharding)) {
      for (const int32_t data : space.Replicas(sharding, pipeline)) {
        for (const Layout& order :
             space.Orders(space.Mesh(sharding, pipeline, data))) {
          for (const Layout& variant : space.Variants(order)) {
            layouts.push_back(variant);
          }
        }
      }
    }
  }
  return layouts;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_PLANNER_SEARCH_PLANNED_LAYOUTS_H_
