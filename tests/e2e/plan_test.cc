#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_replace.h"
#include "base/files.h"
#include "planner/profile/profile_file.h"
#include "tests/e2e/job_process.h"
#include "tests/planner/profile_fixture.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;
using Json = nlohmann::json;

// `millrace plan` of a tiny job with a made-up profile of four devices.
class PlanCommandTest : public ::testing::Test {
 protected:
  PlanCommandTest()
      : folder_("plan"),
        job_(WriteTinyJob(folder_, {})),
        profile_(folder_.path + "/profile.yaml") {
    HardwareProfile profile = MakeProfile({});
    profile.device = {.name = "made up",
                      .multiprocessors = 1,
                      .bf16_flops_per_s = 1e10,
                      .memory_bytes_per_s = 1e10,
                      .source = "made up"};
    profile.network = {
        {.name = "board", .devices = 2, .bytes_per_s = 4e9, .latency_s = 1e-6},
        {.name = "wire", .devices = 0, .bytes_per_s = 2e9, .latency_s = 2e-5}};
    EXPECT_TRUE(SaveProfile(profile, profile_).ok());
  }

  struct Result {
    int exit_code;
    std::string output;
  };
  Result Run(const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {
        MILLRACE_BINARY, "plan", job_, "--profile", profile_, "--devices", "4"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    JobProcess process(folder_, command);
    const int exit_code = process.Wait();
    return {exit_code, process.Output()};
  }

  std::string File(const std::string& name) {
    const absl::StatusOr<std::string> text =
        ReadFile(folder_.path + "/" + name);
    EXPECT_TRUE(text.ok()) << text.status();
    return text.value_or("");
  }

  const JobFolder folder_;
  const std::string job_;
  const std::string profile_;
};

std::vector<std::string> KeysOf(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.items()) keys.push_back(key);
  return keys;
}

int NumRanks(const Json& layout) {
  int product = 1;
  for (const char* axis : {"pipeline", "data", "tensor", "context"}) {
    product *= layout[axis].get<int>();
  }
  return product;
}

// Every reason says what the two step times say that one model gave, so that
// no alternative looks faster than the choice without a word of it.
void ExpectReasonsHold(const Json& plan) {
  for (const Json& alternative : plan["alternatives"]) {
    if (!alternative["fits"]) continue;
    const std::string reason = alternative["reason"];
    const double step_time_s = alternative["predicted"]["step_time_s"];
    const double chosen_s = alternative["chosen_step_time_s"];
    const double ratio = step_time_s / chosen_s;
    EXPECT_THAT(reason, HasSubstr(ratio > 1.0005   ? "slower"
                                  : ratio < 0.9995 ? "faster"
                                                   : "as fast"));
    if (chosen_s != plan["predicted"]["step_time_s"]) {
      EXPECT_THAT(reason, HasSubstr("(choice "));
    }
    if (ratio < 0.9995) {
      EXPECT_THAT(reason, HasSubstr("by the closed form"));
    }
  }
}

// Goal: without --devices a named profile is planned with for as many devices
// as one agent of the job has, not for as many as it was measured with, and the
// plan says so, unless it is told another number. Method: a job of two devices
// an agent with a profile of four ranks.
TEST_F(PlanCommandTest, PlansForTheJobsOwnDevices) {
  const auto run = [&](const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {MILLRACE_BINARY, "plan", job_,
                                        "--profile", profile_};
    command.insert(command.end(), arguments.begin(), arguments.end());
    JobProcess process(folder_, command);
    const int exit_code = process.Wait();
    return Result{exit_code, process.Output()};
  };
  const Result jobs = run({});
  ASSERT_EQ(jobs.exit_code, 0) << jobs.output;
  EXPECT_THAT(jobs.output,
              HasSubstr("Planned for 2 devices, as one agent of the job has"));
  const Result json = run({"--json"});
  ASSERT_EQ(json.exit_code, 0) << json.output;
  EXPECT_EQ(NumRanks(Json::parse(json.output)["layout"]), 2);
  const Result asked = run({"--devices", "4"});
  ASSERT_EQ(asked.exit_code, 0) << asked.output;
  EXPECT_THAT(asked.output, Not(HasSubstr("Planned for")));
  const Result what_if = run({"--what-if", "devices=4"});
  ASSERT_EQ(what_if.exit_code, 0) << what_if.output;
  EXPECT_THAT(what_if.output, Not(HasSubstr("Planned for")));
}

// Goal: programs find the keys that docs/plan.md promises, each of its type,
// and what was asked beside the plan only where it was asked. Method: parse the
// plan with and without questions.
TEST_F(PlanCommandTest, PrintsTheDocumentedJson) {
  const Result plain = Run({"--json"});
  ASSERT_EQ(plain.exit_code, 0) << plain.output;
  const Json plan = Json::parse(plain.output);
  EXPECT_THAT(KeysOf(plan), IsSupersetOf({"layout", "predicted", "search",
                                          "alternatives", "plan_only"}));
  EXPECT_THAT(
      KeysOf(plan["layout"]),
      ElementsAre("context", "copy_engines", "data", "data_groups", "expert",
                  "gradient_reduction", "interleave", "micro_batch", "moments",
                  "pipeline", "precision", "recompute", "schedule",
                  "sequence_parallel", "tensor", "zero"));
  EXPECT_THAT(
      KeysOf(plan["predicted"]),
      IsSupersetOf({"step_time_s", "step_time_low_s", "step_time_high_s",
                    "tokens_per_s_per_device", "mfu_full", "mfu_causal",
                    "memory_bytes_per_device", "bubble_fraction",
                    "exposed_communication_fraction"}));
  EXPECT_THAT(KeysOf(plan["search"]),
              ElementsAre("layouts_considered", "optimality_gap", "seconds"));
  EXPECT_EQ(plan["layout"]["precision"], "fp32");
  EXPECT_FALSE(plan["plan_only"]);
  EXPECT_GT(plan["predicted"]["step_time_s"], 0);
  EXPECT_GT(plan["alternatives"].size(), 3u);
  for (const Json& alternative : plan["alternatives"]) {
    EXPECT_THAT(KeysOf(alternative),
                IsSupersetOf({"layout", "predicted", "simulated",
                              "chosen_step_time_s", "reason", "fits"}));
    EXPECT_NE(alternative["reason"], "");
  }
  ExpectReasonsHold(plan);
  for (const char* answer : {"what_if", "compare", "sensitivity"}) {
    EXPECT_FALSE(plan.contains(answer)) << answer;
  }

  const Result asked =
      Run({"--json", "--what-if", "link.all=10x", "--what-if",
           "training.global_batch=16", "--compare", "tp=2", "--compare",
           "pp=2,zero=0", "--compare", "tp=4", "--sensitivity"});
  ASSERT_EQ(asked.exit_code, 0) << asked.output;
  const Json answers = Json::parse(asked.output);
  EXPECT_EQ(answers["what_if"]["changes"][1]["after"], "16");
  EXPECT_EQ(answers["what_if"]["before"]["layout"], plan["layout"]);
  EXPECT_DOUBLE_EQ(answers["what_if"]["before"]["predicted"]["step_time_s"],
                   plan["predicted"]["step_time_s"]);
  ASSERT_EQ(answers["compare"].size(), 3u);
  EXPECT_EQ(answers["compare"][0]["layout"]["tensor"], 2);
  EXPECT_GE(answers["compare"][0]["predicted"]["step_time_s"],
            answers["predicted"]["step_time_s"]);
  EXPECT_EQ(answers["compare"][1]["layout"]["pipeline"], 2);
  EXPECT_FALSE(answers["compare"][2].contains("layout"));
  EXPECT_THAT(std::string(answers["compare"][2]["verdict"]),
              HasSubstr("cannot be"));
  ASSERT_EQ(answers["sensitivity"].size(), 10u);
  EXPECT_EQ(answers["sensitivity"][0]["key"], "device.flops");
  double parts_s = 0;
  for (const auto& [part, seconds] : answers["binds"]["step_s"].items()) {
    parts_s += seconds.get<double>();
  }
  EXPECT_NEAR(parts_s, answers["predicted"]["step_time_s"], 1e-9);
}

// Goal: people are told the same, on one page unless they ask for more. Method:
// look for each answer's heading, and for what --explain adds.
TEST_F(PlanCommandTest, AnswersInText) {
  const Result result = Run({"--what-if", "link.inter_node=20Gb/s", "--compare",
                             "tp=2", "--sensitivity"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  for (const char* part :
       {"what binds   ", "next lever   ",
        "what if link.wire 16 Gb/s -> 20 Gb/s", "layout before",
        "compared with the chosen", "tp=2: ", "with better hardware",
        "device.memory=2x", "why not", "chosen, "}) {
    EXPECT_THAT(result.output, HasSubstr(part));
  }
  for (const bool explains : {false, true}) {
    const Result told = Run(explains ? std::vector<std::string>{"--explain"}
                                     : std::vector<std::string>{});
    ASSERT_EQ(told.exit_code, 0) << told.output;
    EXPECT_THAT(told.output, HasSubstr("what binds   "));
    EXPECT_THAT(told.output, HasSubstr("why not"));
    for (const char* detail :
         {"  time         compute ", "  levers       ", "  search       ",
          "pipeline ", "why others lost"}) {
      EXPECT_EQ(told.output.find(detail) != std::string::npos, explains)
          << detail << "\n"
          << told.output;
    }
  }
}

// Goal: wrong questions end with code 2 and say what was expected. Method: one
// of each.
TEST_F(PlanCommandTest, RefusesWrongQuestions) {
  struct Case {
    std::vector<std::string> arguments;
    const char* message;
  };
  for (const Case& wrong : std::vector<Case>{
           {{"--what-if", "devises=8"}, "the nearest are devices"},
           {{"--what-if", "link.wire=20"}, "units: b/s"},
           {{"--what-if", "devices=3", "--what-if", "layout.tensor=2"},
            "no layout on 3 devices"},
           {{"--what-if", "profile=h1000"}, "h100-sxm"},
           {{"--what-if", "training.global_batch=104857600"},
            "the most is 1048576, because a plan lists every micro-batch"},
           {{"--compare", "tensr=4"}, "did you mean tensor?"}}) {
    const Result result = Run(wrong.arguments);
    EXPECT_EQ(result.exit_code, 2) << result.output;
    EXPECT_THAT(result.output, HasSubstr(wrong.message));
  }
}

// Goal: where the job takes fewer devices for its money, what is asked about
// the plan is asked of these, on which its layout can be. Method: every
// question, with a price on devices.
TEST_F(PlanCommandTest, AsksAboutTheDevicesThatTheJobTakes) {
  const Result result = Run(
      {"--json", "--what-if", "goodput.price_per_device_hour=2", "--what-if",
       "goodput.objective=cost", "--compare", "mb=1", "--sensitivity"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json plan = Json::parse(result.output);
  EXPECT_EQ(NumRanks(plan["layout"]), 1);
  EXPECT_EQ(NumRanks(plan["compare"][0]["layout"]), 1);
  EXPECT_EQ(plan["sensitivity"].size(), 6u);  // Without links.
  const Result text = Run({"--what-if", "goodput.price_per_device_hour=2",
                           "--what-if", "goodput.objective=cost"});
  EXPECT_EQ(text.exit_code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr("next lever   device.flops +25 %"));
}

// Goal: without a profile the message leads to a plan, and a profile whose
// nodes are smaller than the job's is not taken without a word. Method: an
// empty cache; a job of eight devices an agent with profiles of eight and of
// four a node.
TEST_F(PlanCommandTest, SaysWhichProfilesThereAre) {
  const auto run_job = [&](const std::string& job,
                           const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {"env", "XDG_CACHE_HOME=" + folder_.path,
                                        MILLRACE_BINARY, "plan", job};
    command.insert(command.end(), arguments.begin(), arguments.end());
    JobProcess process(folder_, command);
    const int exit_code = process.Wait();
    return Result{exit_code, process.Output()};
  };
  const Result gpus = run_job("configs/llama3-8b.yaml", {});
  EXPECT_EQ(gpus.exit_code, 1);
  for (const char* part :
       {"no hardware profile of this machine", "millrace profile JOB",
        "--profile NAME --devices N", "h100-sxm, h200-cluster"}) {
    EXPECT_THAT(gpus.output, HasSubstr(part));
  }
  EXPECT_THAT(gpus.output, Not(HasSubstr("fp32")));
  const Result cpus = run_job(job_, {"--devices", "2"});
  EXPECT_EQ(cpus.exit_code, 1);
  EXPECT_THAT(cpus.output, HasSubstr("--profile NAME --devices 2"));
  EXPECT_THAT(cpus.output, HasSubstr("on CPUs in fp32"));

  const std::string eight = "configs/llama3-8b.yaml";
  const absl::StatusOr<std::string> text = ReadFile(eight);
  ASSERT_TRUE(text.ok()) << text.status();
  const std::string sixteen = folder_.path + "/sixteen.yaml";
  std::ofstream(sixteen) << absl::StrReplaceAll(
      *text, {{"devices_per_agent: 8", "devices_per_agent: 16"}});
  const auto warnings = [&](const std::string& job, const std::string& profile,
                            const std::string& devices) {
    const Result planned =
        run_job(job, {"--profile", profile, "--devices", devices, "--json"});
    EXPECT_EQ(planned.exit_code, 0) << planned.output;
    return Json::parse(planned.output)["warnings"].dump();
  };
  const auto smaller = HasSubstr("the job's nodes have");
  const auto alike = HasSubstr("links to a host's other devices are taken");
  EXPECT_THAT(warnings(eight, "h200-cluster", "16"),
              Not(AnyOf(smaller, alike)));
  // Hosts of 4, domains of 72.
  EXPECT_THAT(warnings(eight, "gb200-nvl72", "16"), Not(AnyOf(smaller, alike)));
  EXPECT_THAT(warnings(sixteen, "h200-cluster", "16"),
              HasSubstr("the job's nodes have 16 devices"));
  // Measured on 4 of a host.
  EXPECT_THAT(warnings(eight, "h200-sxm", "16"), AllOf(Not(smaller), alike));
  EXPECT_THAT(warnings(eight, "h200-sxm", "4"), Not(AnyOf(smaller, alike)));
}

// Goal: a plan counts the devices that train, and says that spare hosts come
// on top.
TEST_F(PlanCommandTest, SaysThatSpareHostsComeOnTop) {
  std::ofstream(job_, std::ios::app) << "\nfault: {spare_hosts: 2}\n";
  const Result planned = Run({"--json"});
  ASSERT_EQ(planned.exit_code, 0) << planned.output;
  const Json plan = Json::parse(planned.output);
  EXPECT_EQ(NumRanks(plan["layout"]), 4);
  EXPECT_THAT(plan["warnings"].dump(), HasSubstr("fault.spare_hosts is 2"));
}

// Goal: the step can be looked at as a page, as a trace and bare. Method: write
// each and see that it is what its name says.
TEST_F(PlanCommandTest, WritesTheStepToLookAt) {
  const std::string base = folder_.path + "/step";
  for (const char* suffix : {".html", ".perfetto.json", ".json"}) {
    const Result result = Run({"--timeline", base + suffix});
    ASSERT_EQ(result.exit_code, 0) << result.output;
  }
  const std::string page = File("step.html");
  EXPECT_THAT(page, HasSubstr("\"sections\":[\"timeline\",\"plan\",\"job\"]"));
  EXPECT_THAT(page, HasSubstr("input_gradient"));
  EXPECT_THAT(page, Not(HasSubstr("@REPORT_")));
  EXPECT_GT(Json::parse(File("step.perfetto.json"))["traceEvents"].size(), 20u);
  EXPECT_GT(Json::parse(File("step.json"))["step_time_s"], 0);
  const Result unknown = Run({"--timeline", base + ".svg"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("NAME.html"));
}

// Goal: what disturbs the step is simulated, and widens its interval. Method:
// the same plan without, with noise and a slow device, and a wrong option.
TEST_F(PlanCommandTest, SimulatesWhatDisturbsTheStep) {
  const Json plain = Json::parse(Run({"--json"}).output);
  const Result result =
      Run({"--json", "--noise", "2%", "--straggler", "device=0,slower=50%"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json plan = Json::parse(result.output);
  EXPECT_EQ(plan["layout"], plain["layout"]);
  EXPECT_GT(plan["disturbed"]["slowdown"], 0.1);
  EXPECT_GE(plan["predicted"]["step_time_high_s"],
            plain["predicted"]["step_time_high_s"]);
  EXPECT_FALSE(plan["disturbed"]["causes"].empty());
  EXPECT_EQ(Run({"--straggler", "device=0"}).exit_code, 2);
}

// Goal: users see what is left when nodes are lost, in both forms, and what
// cannot be asked is refused. Method: Llama-3 8B on three nodes of eight, of
// which none, one, two and all are lost; a machine of one node.
TEST_F(PlanCommandTest, PlansForLostNodes) {
  const auto run = [&](const std::string& devices,
                       const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {
        MILLRACE_BINARY, "plan",     "configs/llama3-8b.yaml",
        "--profile",     "h100-sxm", "--devices",
        devices};
    command.insert(command.end(), arguments.begin(), arguments.end());
    JobProcess process(folder_, command);
    const int exit_code = process.Wait();
    return Result{exit_code, process.Output()};
  };
  const Result result = run("24", {"--lost-nodes", "3", "--json"});
  ASSERT_EQ(result.exit_code, 0) << result.output;
  const Json plan = Json::parse(result.output);
  const Json& lost = plan["lost_nodes"];
  EXPECT_EQ(lost["devices_per_node"], 8);
  ASSERT_EQ(lost["plans"].size(), 3u);
  EXPECT_EQ(lost["plans"][0]["layout"], plan["layout"]);
  EXPECT_EQ(lost["plans"][0]["step_time_s"], plan["predicted"]["step_time_s"]);
  double more = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 3; ++i) {
    const Json& row = lost["plans"][i];
    EXPECT_EQ(row["lost_nodes"], i);
    EXPECT_EQ(row["devices"], 24 - 8 * i);
    EXPECT_EQ(NumRanks(row["layout"]),
              row["devices"].get<int>() - row["idle_devices"].get<int>());
    const double tokens_per_s = row["tokens_per_s"];
    EXPECT_LE(tokens_per_s, more);
    more = tokens_per_s;
    if (row["keeps_layout"]) {
      EXPECT_EQ(row["layout"], plan["layout"]);
    } else {
      EXPECT_GT(row["anew_s"], row["look_up_s"]);
    }
  }
  EXPECT_FALSE(lost["plans"][2]["keeps_layout"]);
  EXPECT_THAT(std::string(lost["end"]), HasSubstr("no device is left"));

  const Result text = run("24", {"--lost-nodes", "2"});
  ASSERT_EQ(text.exit_code, 0) << text.output;
  EXPECT_THAT(text.output, HasSubstr("lost nodes devices  idle"));
  EXPECT_THAT(text.output, Not(HasSubstr("no template for more")));

  const Result one_node = run("8", {"--lost-nodes", "1"});
  EXPECT_EQ(one_node.exit_code, 2);
  EXPECT_THAT(one_node.output, HasSubstr("are one node"));
}

// Goal: devices that are not here are planned for by name, plan-only layouts
// too, with the same keys, and their step can be looked at by passes. Method:
// Llama-3 70B on 64 of a data sheet's devices, and on 63.
TEST_F(PlanCommandTest, PlansForADataSheet) {
  const std::string page = folder_.path + "/planned.html";
  const auto run_job = [&](const std::string& job,
                           const std::vector<std::string>& arguments) {
    std::vector<std::string> command = {MILLRACE_BINARY, "plan", job,
                                        "--profile", "h100-sxm"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    JobProcess process(folder_, command);
    const int exit_code = process.Wait();
    return Result{exit_code, process.Output()};
  };
  const auto run = [&](const std::vector<std::string>& arguments) {
    return run_job("configs/llama3-70b.yaml", arguments);
  };
  const Result planned =
      run({"--devices", "64", "--json", "--compare", "cp=2", "--what-if",
           "link.inter_node=800Gb/s", "--timeline", page});
  ASSERT_EQ(planned.exit_code, 0) << planned.output;
  const Json plan = Json::parse(planned.output);
  EXPECT_EQ(plan["layout"]["precision"], "bf16");
  EXPECT_EQ(plan["what_if"]["changes"][0]["key"], "link.fabric");
  EXPECT_EQ(plan["compare"][0]["layout"]["context"], 2);
  EXPECT_EQ(plan["search"]["optimality_gap"], 0);
  EXPECT_GT(plan["predicted"]["memory_bytes_per_device"], int64_t{1} << 30);
  EXPECT_THAT(std::string(plan["warnings"][0]), HasSubstr("not measured"));
  EXPECT_THAT(File("planned.html"), HasSubstr("forward of chunk"));
  ExpectReasonsHold(plan);
  EXPECT_GT(plan["alternatives"].size(), 10u);  // Neighbours among them.

  // Tables too: the choice is told by instructions, others by passes.
  const Result measured =
      run_job("configs/llama3-8b.yaml",
              {"--devices", "64", "--json", "--what-if", "profile=h200-sxm"});
  ASSERT_EQ(measured.exit_code, 0) << measured.output;
  const Json by_instructions = Json::parse(measured.output);
  EXPECT_FALSE(by_instructions["plan_only"]);
  ExpectReasonsHold(by_instructions);

  // A long search leaves the neighbours out, and says so.
  const Result large =
      run_job("configs/llama3-405b.yaml", {"--devices", "1024", "--explain"});
  ASSERT_EQ(large.exit_code, 0) << large.output;
  EXPECT_THAT(large.output, HasSubstr("skipped      neighbouring layouts"));

  const Result odd = run({"--devices", "63", "--explain"});
  ASSERT_EQ(odd.exit_code, 0) << odd.output;
  EXPECT_THAT(odd.output, HasSubstr("are left idle"));
  EXPECT_THAT(odd.output, HasSubstr("from data sheets"));
  EXPECT_THAT(odd.output, Not(HasSubstr("skipped")));
  for (const char* wrong : {"7x8", "0", "-4", "4096000000"}) {
    const Result refused = run({std::string("--devices=") + wrong});
    EXPECT_EQ(refused.exit_code, 2) << wrong;
    EXPECT_THAT(refused.output, HasSubstr("expected a number of devices"));
  }

  const Result unknown = run({});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("give --devices"));
  const Result no_program =
      run({"--devices", "64", "--program", "--what-if", "layout.context=2",
           "--what-if", "layout.tensor=4"});
  EXPECT_EQ(no_program.exit_code, 2);
  EXPECT_THAT(no_program.output, HasSubstr("has no Program"));
}

}  // namespace
}  // namespace millrace
