// The one binary. Exit codes: 0 all well, 1 failure, 2 bad input, 70 an
// exception that nothing else caught, 75 a job that is to be started again.

#include "CLI/CLI.hpp"
#include "base/exceptions.h"
#include "coordinator/cli/agent_command.h"
#include "coordinator/cli/calibrate_command.h"
#include "coordinator/cli/checkpoint_command.h"
#include "coordinator/cli/compare_command.h"
#include "coordinator/cli/coordinator_command.h"
#include "coordinator/cli/data_command.h"
#include "coordinator/cli/devices_command.h"
#include "coordinator/cli/diagnose_command.h"
#include "coordinator/cli/doctor_command.h"
#include "coordinator/cli/evaluate_command.h"
#include "coordinator/cli/import_command.h"
#include "coordinator/cli/launch.h"
#include "coordinator/cli/logs_command.h"
#include "coordinator/cli/plan_command.h"
#include "coordinator/cli/profile_command.h"
#include "coordinator/cli/report_command.h"
#include "coordinator/cli/run_command.h"
#include "coordinator/cli/score_command.h"
#include "coordinator/cli/status_command.h"
#include "coordinator/cli/submit_command.h"
#include "coordinator/cli/watch_command.h"
#include "coordinator/cli/worker_command.h"

namespace {
int RunCommand(int argc, char** argv) {
  CLI::App app(
      "Millrace plans and runs distributed training of transformer models.");
  app.name("millrace");
  app.set_version_flag("--version", "millrace " MILLRACE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Examples:\n"
      "  millrace plan configs/quickstart.yaml       what would run, and why\n"
      "  millrace run configs/quickstart.yaml        train on this machine\n"
      "  mpirun -n 2 millrace agent job.yaml         train over several\n"
      "  millrace submit job.yaml --slurm --nodes 4  a batch script for "
      "Slurm\n"
      "  millrace profile configs/quickstart.yaml    measure this machine\n"
      "  millrace devices                            what there is to train "
      "on\n"
      "  mpirun -n 2 millrace doctor                 what is amiss with these "
      "hosts\n"
      "  millrace watch runs/quickstart-latest       a run while it goes "
      "on\n"
      "  millrace status node1:4711                  the same once, from any "
      "host\n"
      "  millrace logs node1:4711 --rank 3           what a rank has to say\n"
      "  millrace report runs/quickstart-latest      where the time went\n"
      "  millrace data show job.yaml                 what the model will see\n"
      "  millrace import --from huggingface config.json   a job from a model\n"
      "  millrace checkpoint list runs/quickstart-latest/checkpoints\n"
      "  millrace score job.yaml                     a model on held-out "
      "text\n"
      "  millrace compare job.yaml                   a GPU's step against a "
      "CPU's\n"
      "  millrace diagnose trace.json                why a step is slow\n"
      "  millrace evaluate runs.json                 the model against "
      "measured steps\n"
      "Each command has its own --help.");
  int exit_code = 0;
  millrace::AddPlanCommand(app, &exit_code);
  millrace::AddRunCommand(app, &exit_code);
  millrace::AddAgentCommand(app, &exit_code);
  millrace::AddSubmitCommand(app, &exit_code);
  millrace::AddProfileCommand(app, &exit_code);
  millrace::AddImportCommand(app, &exit_code);
  millrace::AddDataCommand(app, &exit_code);
  millrace::AddWatchCommand(app, &exit_code);
  millrace::AddStatusCommand(app, &exit_code);
  millrace::AddLogsCommand(app, &exit_code);
  millrace::AddReportCommand(app, &exit_code);
  millrace::AddCheckpointCommand(app, &exit_code);
  millrace::AddScoreCommand(app, &exit_code);
  millrace::AddDevicesCommand(app, &exit_code);
  millrace::AddDoctorCommand(app, &exit_code);
  millrace::AddCompareCommand(app, &exit_code);
  millrace::AddDiagnoseCommand(app, &exit_code);
  millrace::AddEvaluateCommand(app, &exit_code);
  millrace::AddCalibrateCommand(app, &exit_code);
  millrace::AddWorkerCommand(app, &exit_code);
  millrace::AddCoordinatorCommand(app, &exit_code);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : millrace::kBadInput;
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  return millrace::CatchExceptions([&] { return RunCommand(argc, argv); });
}
