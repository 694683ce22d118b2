"""Goal: scripts/tidy passes a tree that keeps the rules and names each breach of
them. Method: write small trees, each with one breach, and read what it prints.
"""

import pathlib
import subprocess
import sys
import tempfile
import unittest

TIDY = pathlib.Path(__file__).parents[2] / "scripts" / "tidy"
GOOD_HEADER = "#ifndef MILLRACE_{0}_H_\n#define MILLRACE_{0}_H_\n{1}#endif\n"


def run_tidy(files):
    """Exit code and output of tidy on a tree of {path: content}."""
    with tempfile.TemporaryDirectory() as root:
        for name, content in files.items():
            path = pathlib.Path(root, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content)
        done = subprocess.run([sys.executable, TIDY, root], capture_output=True,
                              text=True, check=False)
        return done.returncode, done.stdout


class TidyTest(unittest.TestCase):

    def assert_breach(self, files, *words):
        code, output = run_tidy(files)
        self.assertEqual(code, 1, output)
        for word in words:
            self.assertIn(word, output)
        self.assertIn("tidy: 1 to mend", output)

    def test_accepts_what_the_rules_allow(self):
        code, output = run_tidy({
            "base/a.h": GOOD_HEADER.format("BASE_A", ""),
            "base/a.cc": '#include "base/a.h"\n\n#include <string>\n',
            "worker/communicate/gloo_mesh.cc": '#include <gloo/context.h>\n'
                                               '#include "kernels/gemm/gemm.h"\n',
            "worker/communicate/README.md": "# worker/communicate\n",
            "worker/agent/agent.cc": '#include "coordinator/protocol/wire.h"\n'
                                     '#include "worker/cpu/trainer.h"\n',
            "worker/agent/README.md": "# worker/agent\n",
            "coordinator/cli/main.cc": '#include "worker/agent/agent.h"\n#include "CLI/CLI.hpp"\n'
                                       '#include "coordinator/protocol/wire.h"\n',
            "tests/base/a_test.cc": '#include "worker/cpu/w.h"\n#include <gloo/context.h>\n',
            "docs/a.md": "See [the other](b.md#top) and [far](https://example.org/x).\n",
            "docs/b.md": "# Top\n",
            "build-x/bad.cc": '#include "worker/w.h" \n',
        })
        self.assertEqual(code, 0, output)

    def test_names_includes_against_the_direction(self):
        readme = {"planner/job/README.md": "# planner/job\n"}
        self.assert_breach({"planner/job/p.cc": '\n#include "worker/cpu/w.h"\n', **readme},
                           "planner/job/p.cc:2:", "planner/job must not include worker/cpu/w.h",
                           "it may include base, planner/graph, planner/layout, planner/text")
        self.assert_breach({"planner/job/p.cc": '#include "planner/search/search.h"\n', **readme},
                           "planner/job must not include planner/search/search.h")
        self.assert_breach({"fault/f.cc": '#include "coordinator/server.h"\n'},
                           "fault must not include coordinator/server.h")
        self.assert_breach({"coordinator/s.cc": '#include "worker/cpu/w.h"\n'},
                           "coordinator must not include worker/cpu/w.h")

    def test_names_files_outside_of_rooms_and_rooms_without_readme(self):
        self.assert_breach({"planner/p.cc": "int a;\n"}, "planner/p.cc:1:", "holds rooms alone")
        self.assert_breach({"planner/job/p.cc": "int a;\n"}, "planner/job/README.md:1:",
                           "which question it answers")
        self.assert_breach({"planner/job/README.md": "A line.\n" * 31},
                           "planner/job/README.md:31:", "at most 30")

    def test_names_a_library_used_beside_its_door(self):
        self.assert_breach({"worker/agent/agent.cc": "#include <mpi.h>\n",
                            "worker/agent/README.md": "# worker/agent\n"},
                           "worker/agent/agent.cc:1:", "worker/agent/mpi_*")
        self.assert_breach({"fault/f.cc": "#include <yaml-cpp/yaml.h>\n"},
                           "planner/text/yaml_tree")

    def test_names_input_beside_its_door(self):
        self.assert_breach({"fault/p.cc": "auto j = nlohmann::json::parse(text);\n"},
                           "fault/p.cc:1:", "ParseJson() of base/json.h")
        self.assert_breach({"fault/w.cc": "\nstd::ifstream in(path);\n"},
                           "fault/w.cc:2:", "ReadFile() or OpenRegularFile()")
        code, output = run_tidy({"base/json.cc": "Json::parse(text);\n",
                                 "tests/base/t.cc": "Json::parse(text);\n"})
        self.assertEqual(code, 0, output)

    def test_names_wrong_guards_and_header_order(self):
        self.assert_breach({"base/a.h": GOOD_HEADER.format("BASE_B", "")},
                           "#ifndef MILLRACE_BASE_A_H_")
        self.assert_breach({"base/a.h": GOOD_HEADER.format("BASE_A", ""),
                            "base/a.cc": '#include <string>\n#include "base/a.h"\n'},
                           "base/a.cc:1:", 'should be "base/a.h"')

    def test_names_breaches_in_any_text(self):
        self.assert_breach({"base/a.cc": "int x; \n"}, "base/a.cc:1:", "white space")
        self.assert_breach({"base/a.cc": "// TO" + "DO: later\n"}, "base/a.cc:1:", "do it now")
        self.assert_breach({"base/a.cc": "\n" * 601}, "601 lines", "split the file")
        self.assert_breach({"docs/a.md": "[gone](gone.md)\n"}, "docs/a.md:1:", "gone.md")
        self.assert_breach({"base/README.md": "1. `gone.h`\n"}, "there is no file gone.h")


if __name__ == "__main__":
    unittest.main()
