// Every layout of a small space, which searches are held to.

#ifndef MILLRACE_TESTS_PLANNER_SEARCH_TREE_LAYOUTS_H_
#define MILLRACE_TESTS_PLANNER_SEARCH_TREE_LAYOUTS_H_

#include <cstdint>
#include <vector>

#include "planner/layout/layout.h"
#include "planner/search/layout_tree.h"

namespace millrace {

inline std::vector<Layout> LayoutsOf(const LayoutTree& space) {
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

#endif  // MILLRACE_TESTS_PLANNER_SEARCH_TREE_LAYOUTS_H_
