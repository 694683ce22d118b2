#include "coordinator/cli/plan_command.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/cli/plan_case.h"
#include "coordinator/cli/plan_lost_nodes.h"
#include "coordinator/cli/plan_profile.h"
#include "coordinator/cli/plan_timeline.h"
#include "planner/explain/explain.h"
#include "planner/explain/explain_json.h"
#include "planner/explain/sensitivity.h"
#include "planner/explain/what_if.h"
#include "planner/fleet/disturbance.h"
#include "planner/fleet/objective_search.h"
#include "planner/frameworks/adapter.h"
#include "planner/frameworks/export.h"
#include "planner/frameworks/model_folder.h"
#include "planner/layout/layout.h"
#include "planner/lower/lower.h"
#include "planner/profile/prediction_interval.h"
#include "planner/search/plan.h"

namespace millrace {
namespace {

struct PlanOptions {
  std::string job_path;
  CaseOptions asked;
  std::vector<std::string> what_if;  // "KEY=VALUE".
  std::vector<std::string> compare;  // "tp=4,pp=8".
  bool sensitivity = false;
  std::string timeline_path;
  std::string noise;
  std::vector<std::string> stragglers;
  std::vector<std::string> slow_links;
  int32_t lost_nodes = 0;
  uint64_t seed = 0;
  std::optional<int32_t> num_steps;
  bool program = false;
  bool explain = false;
  bool json = false;
  std::string export_to;    // Name of a Framework; empty: none.
  std::string output_path;  // The export's file; empty: standard output.
};

absl::Status PrintPrograms(const JobSpec& job, const Plan& plan) {
  const Layout& layout = plan.layout;
  if (plan.plan_only) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--program: no worker can execute ", LayoutToString(layout),
        " of this model yet, so it has no Program; --timeline shows its "
        "passes"));
  }
  ASSIGN_OR_RETURN(const std::vector<Program> programs,
                   BuildTrainingPrograms(job.model, layout));
  for (const Program& program : programs) {
    std::cout << ProgramToString(program);
  }
  return absl::OkStatus();
}

// A profile of measurements may be of fewer ranks than a host has devices.
int32_t DevicesPerHost(const PlanningCase& planned) {
  const HardwareProfile& profile = planned.profile;
  return profile.gemms.empty()
             ? profile.ranks_per_host
             : planned.job.resources.devices_per_agent.value_or(
                   profile.ranks_per_host);
}

absl::Status PrintExport(const PlanOptions& options,
                         const PlanningCase& planned, const Layout& layout) {
  const Framework framework = FindAdapter(options.export_to);
  CHECK(framework != nullptr) << options.export_to;  // The parser knows them.
  ASSIGN_OR_RETURN(
      const std::string text,
      ExportLayout(planned.job, layout, framework, DevicesPerHost(planned)));
  if (options.output_path.empty()) {
    std::cout << text;
    return absl::OkStatus();
  }
  return WriteFileAtomically(options.output_path, text);
}

// The case that the options ask about, what --what-if changed in it, and the
// plan without these changes.
struct Question {
  PlanningCase planned;
  std::vector<ValueChange> changes;
  std::optional<Plan> before;
};

absl::StatusOr<Question> AskedQuestion(const PlanOptions& options,
                                       const JobSpec& job, const Here& here) {
  Question question;
  PlanningCase& planned = question.planned;
  ASSIGN_OR_RETURN(planned, FindCase(options.asked, job, here));
  if (options.what_if.empty()) return question;
  const ProfileLoader load = [&](const std::string& name) {
    return FindProfileFor(name, planned.num_devices, job, here);
  };
  PlanningCase changed = planned;
  ASSIGN_OR_RETURN(question.changes,
                   ApplyWhatIf(options.what_if, load, &changed));
  ASSIGN_OR_RETURN(ObjectivePlan before, PlanForObjective(planned));
  question.before = std::move(before.plan);
  planned = std::move(changed);
  return question;
}

// Reads the options --noise, --straggler and --slow-link.
absl::StatusOr<DisturbanceSpec> DisturbanceOf(const PlanOptions& options,
                                              const PlanningCase& planned) {
  DisturbanceSpec spec{.seed = options.seed, .num_steps = options.num_steps};
  if (!options.noise.empty()) {
    RETURN_IF_ERROR(
        ParseNoise(options.noise, NoiseFor(planned.profile), &spec));
  }
  for (const std::string& text : options.stragglers) {
    RETURN_IF_ERROR(ParseStraggler(text, &spec));
  }
  for (const std::string& text : options.slow_links) {
    RETURN_IF_ERROR(ParseSlowLink(text, &spec));
  }
  return spec;
}

absl::StatusOr<PlanAnswers> AnswersFor(const PlanOptions& options,
                                       const Question& question,
                                       const Plan& plan) {
  PlanAnswers answers{.changes = question.changes, .before = question.before};
  const PlanningCase& planned = question.planned;
  ASSIGN_OR_RETURN(answers.parts, PartsOf(plan));
  for (const std::string& asked : options.compare) {
    ASSIGN_OR_RETURN(
        LayoutComparison comparison,
        CompareLayout(asked, planned, plan, *answers.parts, PlanCase));
    answers.comparisons.push_back(std::move(comparison));
  }
  if (options.sensitivity) {
    ASSIGN_OR_RETURN(answers.sensitivity,
                     FindSensitivity(planned, plan, PlanCase));
  }
  if (options.lost_nodes > 0) {
    ASSIGN_OR_RETURN(answers.lost_nodes,
                     AnswerLostNodes(planned, plan, options.lost_nodes));
  }
  if (!options.json) {
    ASSIGN_OR_RETURN(answers.next_step, FindNextStep(planned, plan, PlanCase));
  }
  if (options.explain) {
    answers.float8 = FindFloat8Gains(planned, plan, PlanCase);
  }
  return answers;
}

absl::Status RunPlan(const PlanOptions& options) {
  RETURN_IF_ERROR(CheckTimelinePath(options.timeline_path));
  ASSIGN_OR_RETURN(const JobSpec job, LoadJobWithFolder(options.job_path));
  ASSIGN_OR_RETURN(const Here here, FindHere(job));
  ASSIGN_OR_RETURN(Question question, AskedQuestion(options, job, here));
  PlanningCase& planned = question.planned;
  const int32_t num_devices = planned.num_devices;
  ASSIGN_OR_RETURN(ObjectivePlan chosen, PlanForObjective(planned));
  // An objective may take fewer; all that follows is about these.
  planned.num_devices = chosen.num_devices;
  Plan& plan = chosen.plan;
  ASSIGN_OR_RETURN(const DisturbanceSpec disturbance,
                   DisturbanceOf(options, planned));
  std::optional<DisturbedStep> disturbed;
  if (disturbance.is_given()) {
    ASSIGN_OR_RETURN(disturbed, SimulateDisturbed(planned.job, planned.profile,
                                                  plan, disturbance));
    plan.prediction.step_time_high_s = std::max(
        plan.prediction.step_time_high_s.value_or(0), disturbed->high_s);
  }
  // Fifteen more searches, so only for those who want to read more.
  bool has_other_choices = true;
  if (options.explain || options.json || !options.timeline_path.empty()) {
    ASSIGN_OR_RETURN(has_other_choices, AddOtherChoices(planned, &plan));
  }
  for (const std::string& warning :
       WarningsFor(planned.job, here, planned.profile, planned.num_devices)) {
    plan.warnings.push_back(warning);
  }

  if (!options.timeline_path.empty()) {
    RETURN_IF_ERROR(WritePlanTimeline(options.timeline_path, planned, plan));
  }
  if (options.program) return PrintPrograms(planned.job, plan);
  if (!options.export_to.empty()) {
    if (!plan.listed_bytes.empty()) {
      std::cerr << "millrace plan: warning: the plan's passes are in an order "
                   "of list scheduling, which no configuration can say; the "
                   "framework's own takes longer"
                << std::endl;
    }
    for (const std::string& warning : plan.warnings) {
      std::cerr << "millrace plan: warning: " << warning << std::endl;
    }
    return PrintExport(options, planned, plan.layout);
  }
  ASSIGN_OR_RETURN(PlanAnswers answers, AnswersFor(options, question, plan));
  if (!std::any_of(
          question.changes.begin(), question.changes.end(),
          [](const ValueChange& change) { return change.key == "devices"; })) {
    answers.devices_from =
        DevicesFromText(DevicesFromOf(options.asked, job), num_devices);
  }
  answers.goodput = chosen.goodput;
  answers.disturbed = std::move(disturbed);
  answers.leaves_out_neighbours = !has_other_choices;
  answers.num_learnt_runs = planned.profile.learnt_runs.size();
  if (options.json) {
    std::cout << PlanToJson(plan, answers);
  } else if (options.explain) {
    std::cout << ExplainPlan(planned.job, planned.profile, plan, answers);
  } else {
    std::cout << SummarizePlan(planned.job, planned.profile, plan, answers);
  }
  return absl::OkStatus();
}

int ExitCode(const absl::Status& status) {
  if (status.ok()) return 0;
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace

void AddPlanCommand(CLI::App& app, int* exit_code) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = app.add_subcommand(
      "plan", "Choose a layout for a job, predict it and say why");
  command->add_option("JOB", options->job_path, "The job file")->required();
  command->add_option(
      "--devices", options->asked.devices,
      "How many devices to plan for (default: as one agent of the job has, if "
      "a profile is named, else as the profile was measured)");
  command->add_option(
      "--profile", options->asked.profile_name,
      "Hardware profile (default: the job's, or this machine's cached one)");
  command
      ->add_option("--what-if", options->what_if,
                   "Plan with KEY=VALUE instead, and show what changes: "
                   "devices=1024, link.inter_node=800Gb/s, "
                   "training.global_batch=512; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--compare", options->compare,
                   "Set the best layout with these beside the chosen one: "
                   "tp=4,pp=8; may be repeated")
      ->allow_extra_args(false);
  command->add_flag("--plan-only", options->asked.plan_only,
                    "Consider also layouts that workers cannot execute yet");
  command->add_flag("--sensitivity", options->sensitivity,
                    "Show what better hardware would buy, part by part");
  command->add_option("--noise", options->noise,
                      "How much times scatter, standard deviation over mean: "
                      "2% of each pass; passes=2%,steps=1%; or profile");
  command
      ->add_option("--straggler", options->stragglers,
                   "Simulate with what computes slower: node=3,slower=20%; "
                   "device=17,slower=20%; nodes=0.5%,slower=20%, a share of "
                   "all; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--slow-link", options->slow_links,
                   "Simulate with a node's link at a share of its bandwidth: "
                   "node=3,link=inter_node,rate=50%; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--lost-nodes", options->lost_nodes,
                   "Plan also for when 1, 2 ... up to so many nodes are lost, "
                   "and show what is left of the throughput")
      ->check(CLI::Range(1, 1'000));
  command->add_option("--seed", options->seed,
                      "Decides noise and which share of nodes is slow");
  command
      ->add_option("--simulated-steps", options->num_steps,
                   "Steps to draw noise for (default: 20 to 200, about a "
                   "second)")
      ->check(CLI::Range(1, 100'000));
  command->add_option("--timeline", options->timeline_path,
                      "Write the predicted step here: NAME.html is a page, "
                      "NAME.perfetto.json a trace for Perfetto, NAME.json "
                      "the bare timeline");
  CLI::Option* program = command->add_flag(
      "--program", options->program,
      "Print every instruction, wait and buffer of the step instead");
  CLI::Option* explain = command->add_flag(
      "--explain", options->explain,
      "Tell also where time and memory go, how the figures were made, what "
      "neighbouring layouts cost and why others lost");
  explain->excludes(program);
  CLI::Option* json =
      command->add_flag("--json", options->json, "Print one JSON object")
          ->excludes(program);
  CLI::Option* export_to =
      command
          ->add_option("--export", options->export_to,
                       absl::StrCat("Print the layout as another framework's "
                                    "configuration instead: ",
                                    JoinWithOr(ExportNames())))
          ->check(CLI::IsMember(ExportNames()))
          ->excludes(program)
          ->excludes(explain)
          ->excludes(json);
  command
      ->add_option("--output", options->output_path,
                   "Write the export here (default: standard output)")
      ->needs(export_to);
  command->footer("Example: millrace plan configs/quickstart.yaml --devices 4");
  command->callback([options, exit_code] {
    const absl::Status status = RunPlan(*options);
    if (!status.ok()) {
      std::cerr << "millrace plan: " << status.message() << std::endl;
    }
    *exit_code = ExitCode(status);
  });
}

}  // namespace millrace
