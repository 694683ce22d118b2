#include "coordinator/metrics/metrics_feed.h"

#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "coordinator/metrics/event_file.h"
#include "coordinator/metrics/mlflow_run.h"
#include "coordinator/metrics/prometheus_text.h"

namespace millrace {
namespace {

// Steps that wait to be written: a minute of very short ones.
constexpr size_t kMaxQueued = 4096;
constexpr auto kTimeForTheRest = std::chrono::seconds(2);
constexpr double kTextfileIntervalSeconds = 1;

}  // namespace

// Shared with the thread, which may outlive the feed. Only the thread touches
// the files.
class MetricsFeed::Impl : public std::enable_shared_from_this<Impl> {
 public:
  explicit Impl(const MetricsOptions& options) : options_(options) {
    snapshot_.run =
        std::filesystem::path(options.run_directory).filename().string();
    snapshot_.num_steps = options.job.training.num_steps;
  }

  void Start() {
    started_ = true;
    std::thread([self = shared_from_this()] { self->Run(); }).detach();
  }

  void Step(const StepRecord& record) {
    const std::lock_guard lock(mutex_);
    snapshot_.step = record;
    if (record.validation_loss.has_value()) {
      snapshot_.validation_loss = record.validation_loss;
    }
    for (const auto& [set, loss] : record.evaluation) {
      snapshot_.evaluation[set] = loss;
    }
    if (!started_) return;
    if (queue_.size() >= kMaxQueued) {
      queue_.pop_front();
      has_dropped_ = true;
    }
    queue_.push_back({record, UnixNow()});
    changed_.notify_all();
  }

  void Event(const std::string& event) {
    const std::lock_guard lock(mutex_);
    ++snapshot_.events[event];
  }

  void Ranks(Rank rank, const RankTime& time) {
    const std::lock_guard lock(mutex_);
    snapshot_.ranks[rank] = time;
  }

  void End(const std::string& status) {
    const std::lock_guard lock(mutex_);
    snapshot_.running = false;
    end_status_ = status;
  }

  // Waits for the thread, but not for long.
  void Finish() {
    if (!started_) return;
    std::unique_lock lock(mutex_);
    finishing_ = true;
    changed_.notify_all();
    changed_.wait_for(lock, kTimeForTheRest, [this] { return finished_; });
  }

  std::string Exposition() {
    const std::lock_guard lock(mutex_);
    return PrometheusText(snapshot_);
  }

  void Warn(const std::string& target, const std::string& what) {
    const std::lock_guard lock(mutex_);
    if (!warned_.insert(target).second) return;
    warnings_.push_back(absl::StrCat("metrics: ", what));
  }

  std::vector<std::string> TakeWarnings() {
    const std::lock_guard lock(mutex_);
    return std::exchange(warnings_, {});
  }

 private:
  struct TimedStep {
    StepRecord record;
    double unix_s;
  };

  void Run() {
    Open();
    WriteTextfile();
    while (true) {
      std::deque<TimedStep> steps;
      bool last = false;
      bool has_dropped = false;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return finishing_ || !queue_.empty(); });
        steps.swap(queue_);
        last = finishing_;
        has_dropped = has_dropped_;
      }
      if (has_dropped) {
        Warn("queue",
             "files for dashboards are written slower than steps are done; "
             "some steps are missing in them");
      }
      for (const TimedStep& step : steps) Write(step);
      if (last || MonotonicSeconds() - textfile_s_ > kTextfileIntervalSeconds) {
        WriteTextfile();
      }
      if (last) break;
    }
    End();
    const std::lock_guard lock(mutex_);
    finished_ = true;
    changed_.notify_all();
  }

  void Open() {
    const MetricsSpec& metrics = options_.job.metrics;
    if (metrics.tensorboard) {
      absl::StatusOr<EventFile> file =
          EventFile::Open(options_.run_directory + "/tensorboard");
      Check("tensorboard", file.status());
      if (file.ok()) events_.emplace(*std::move(file));
    }
    if (!metrics.mlflow.empty()) {
      absl::StatusOr<MlflowRun> run =
          MlflowRun::Open({.folder = metrics.mlflow,
                           .job = options_.job,
                           .run_directory = options_.run_directory,
                           .started_unix_s = options_.started_unix_s});
      Check("mlflow", run.status());
      if (run.ok()) mlflow_.emplace(*std::move(run));
    }
  }

  void Write(const TimedStep& step) {
    if (events_.has_value()) {
      Check("tensorboard", events_->Add(step.record, step.unix_s));
    }
    if (mlflow_.has_value()) {
      Check("mlflow", mlflow_->Add(step.record, step.unix_s));
    }
  }

  void WriteTextfile() {
    const std::string& path = options_.job.metrics.textfile;
    if (path.empty()) return;
    const absl::Status status = WriteFileAtomically(path, Exposition());
    // The node exporter is another user, and the process keeps files private.
    if (status.ok()) static_cast<void>(chmod(path.c_str(), 0644));
    Check("textfile", status);
    textfile_s_ = MonotonicSeconds();
  }

  void End() {
    std::string status;
    {
      const std::lock_guard lock(mutex_);
      status = end_status_;
    }
    // Without an end the coordinator is being restarted.
    if (mlflow_.has_value() && !status.empty()) {
      Check("mlflow", mlflow_->End(status, UnixNow()));
    }
  }

  void Check(const std::string& key, const absl::Status& status) {
    if (status.ok()) return;
    Warn(key, absl::StrCat(key, ": ", status.message(),
                           "; training goes on, values are missing there"));
  }

  const MetricsOptions options_;
  bool started_ = false;

  std::optional<EventFile> events_;
  std::optional<MlflowRun> mlflow_;
  double textfile_s_ = 0;

  std::mutex mutex_;  // Guards what follows.
  std::condition_variable changed_;
  std::deque<TimedStep> queue_;
  RunSnapshot snapshot_;
  std::string end_status_;
  std::set<std::string> warned_;  // Targets.
  std::vector<std::string> warnings_;
  bool has_dropped_ = false;
  bool finishing_ = false;
  bool finished_ = false;
};

MetricsFeed::MetricsFeed(const MetricsOptions& options)
    : impl_(std::make_shared<Impl>(options)) {
  const MetricsSpec& metrics = options.job.metrics;
  if (metrics.port > 0) {
    absl::StatusOr<std::unique_ptr<HttpServer>> server = HttpServer::Start(
        {.address = metrics.address,
         .port = metrics.port,
         .answer = [impl = impl_](const std::string& path) -> HttpAnswer {
           if (path != "/metrics") {
             return {.status = 404, .body = "only /metrics is here\n"};
           }
           return {.type = "text/plain; version=0.0.4; charset=utf-8",
                   .body = impl->Exposition()};
         }});
    if (server.ok()) {
      server_ = *std::move(server);
    } else {
      impl_->Warn("port", absl::StrCat(server.status().message(),
                                       "; training goes on without /metrics"));
    }
  }
  if (metrics.tensorboard || !metrics.mlflow.empty() ||
      !metrics.textfile.empty()) {
    impl_->Start();
  }
}

MetricsFeed::~MetricsFeed() { impl_->Finish(); }

void MetricsFeed::Step(const StepRecord& record) { impl_->Step(record); }
void MetricsFeed::Event(const std::string& event) { impl_->Event(event); }
void MetricsFeed::Ranks(Rank rank, const RankTime& time) {
  impl_->Ranks(rank, time);
}
void MetricsFeed::End(const std::string& status) { impl_->End(status); }
std::vector<std::string> MetricsFeed::TakeWarnings() {
  return impl_->TakeWarnings();
}

}  // namespace millrace
