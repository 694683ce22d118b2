#include "coordinator/cli/kubernetes_manifest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/json.h"
#include "base/status_macros.h"
#include "base/utf8.h"
#include "coordinator/protocol/exit_codes.h"
#include "coordinator/protocol/secret.h"

namespace millrace {
namespace {

constexpr size_t kMaxNameLength = 50;  // 63 with "-INDEX".
constexpr int32_t kPort = 4711;
// Times that the whole job may fail before Kubernetes gives up.
constexpr int32_t kTries = 3;

struct Volume {
  std::string claim;
  std::string path;
};

absl::StatusOr<Volume> ParseVolume(const std::string& text) {
  const std::pair<std::string, std::string> parts =
      absl::StrSplit(text, absl::MaxSplits(':', 1));
  const bool is_claim =
      !parts.first.empty() &&
      std::all_of(parts.first.begin(), parts.first.end(), [](char c) {
        return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' ||
               c == '.';
      });
  if (!is_claim || parts.second.empty() || parts.second[0] != '/') {
    return absl::InvalidArgumentError(
        absl::StrCat("--volume ", text,
                     " is not CLAIM:/path, the name of a PersistentVolumeClaim "
                     "and where all pods mount it, such as training:/data"));
  }
  return Volume{.claim = parts.first, .path = parts.second};
}

// A scalar of YAML, of which JSON's strings are a part.
std::string QuotedForYaml(const std::string& text) {
  return JsonText(nlohmann::json(text));
}

// A block that keeps the text as it is.
absl::StatusOr<std::string> Block(const std::string& text, int indent) {
  if (!IsUtf8(text)) {
    return absl::InvalidArgumentError(
        "the job file is not UTF-8, so it cannot stand in a manifest");
  }
  std::string block;
  for (const absl::string_view line :
       absl::StrSplit(absl::StripSuffix(text, "\n"), '\n')) {
    if (std::any_of(line.begin(), line.end(), [](char c) {
          return absl::ascii_iscntrl(c) && c != '\t';
        })) {
      return absl::InvalidArgumentError(
          "the job file holds a carriage return or another control character, "
          "which cannot stand in a manifest; save it with plain line ends");
    }
    absl::StrAppend(&block, "\n", line.empty() ? "" : std::string(indent, ' '),
                    line);
  }
  return block;
}

std::string CommandOf(const std::string& name, int32_t num_nodes) {
  const std::string job = "/etc/millrace/job.yaml";
  if (num_nodes == 1) return absl::StrCat("exec millrace run ", job);
  const std::string first = absl::StrCat(name, "-0.", name);
  return absl::StrCat(
      "if [ \"$JOB_COMPLETION_INDEX\" = 0 ]; then exec millrace agent ", job,
      " --agents ", num_nodes, " --port ", kPort, "; fi; until getent hosts ",
      first, " > /dev/null; do sleep 1; done; exec millrace agent --join ",
      first, ":", kPort);
}

// How pods that fail are judged, by the exit codes of protocol/exit_codes.h.
std::string FailurePolicy(bool requeue) {
  return absl::StrCat(
      "  podFailurePolicy:\n"
      "    rules:\n"
      "    # The job cannot work as it is.\n"
      "    - action: FailJob\n"
      "      onExitCodes:\n"
      "        containerName: agent\n"
      "        operator: In\n"
      "        values: [",
      kRefusedExitCode, "]\n",
      !requeue
          ? ""
          : absl::StrCat("    # There is a checkpoint, and more to train.\n"
                         "    - action: Ignore\n"
                         "      onExitCodes:\n"
                         "        containerName: agent\n"
                         "        operator: In\n"
                         "        values: [",
                         kRequeueExitCode,
                         "]\n"
                         "    # Its node was drained.\n"
                         "    - action: Ignore\n"
                         "      onPodConditions:\n"
                         "      - type: DisruptionTarget\n"
                         "        status: \"True\"\n"));
}

}  // namespace

std::string KubernetesName(const std::string& job_name) {
  std::string name;
  for (const char c : job_name) {
    const char lower = absl::ascii_tolower(c);
    const bool fits = absl::ascii_islower(lower) || absl::ascii_isdigit(lower);
    if (name.size() < kMaxNameLength) name.push_back(fits ? lower : '-');
  }
  while (!name.empty() && name.back() == '-') name.pop_back();
  name.erase(0, std::min(name.find_first_not_of('-'), name.size()));
  // A service's name begins with a letter.
  if (name.empty() || absl::ascii_isdigit(name[0])) {
    name = absl::StrCat("job-", name).substr(0, kMaxNameLength);
    while (name.back() == '-') name.pop_back();
  }
  return name;
}

absl::StatusOr<std::string> WriteKubernetesManifest(
    const KubernetesOptions& options) {
  std::vector<Volume> volumes;
  for (const std::string& text : options.volumes) {
    ASSIGN_OR_RETURN(Volume volume, ParseVolume(text));
    volumes.push_back(std::move(volume));
  }
  ASSIGN_OR_RETURN(const std::string job_text,
                   Block(options.job_text, /*indent=*/4));
  const std::string name = KubernetesName(options.job_name);
  std::string text = absl::StrCat(
      "# Made by millrace submit; docs/cluster.md explains it. Once, before:\n"
      "#   openssl rand -hex 16 | kubectl create secret generic ",
      name, "-secret --from-file=secret=/dev/stdin\n",
      "apiVersion: v1\n"
      "kind: ConfigMap\n"
      "metadata:\n"
      "  name: ",
      name,
      "\n"
      "data:\n"
      "  job.yaml: |2",
      job_text,
      "\n---\n"
      "# Gives the pods names by which they find agent 0.\n"
      "apiVersion: v1\n"
      "kind: Service\n"
      "metadata:\n"
      "  name: ",
      name,
      "\n"
      "spec:\n"
      "  clusterIP: None\n"
      "  publishNotReadyAddresses: true\n"
      "  selector:\n"
      "    batch.kubernetes.io/job-name: ",
      name,
      "\n"
      "---\n"
      "apiVersion: batch/v1\n"
      "kind: Job\n"
      "metadata:\n"
      "  name: ",
      name,
      "\n"
      "spec:\n"
      "  completionMode: Indexed\n"
      "  completions: ",
      options.num_nodes, "\n  parallelism: ", options.num_nodes,
      "\n"
      "  # Every agent of a job that fails fails with it.\n"
      "  backoffLimit: ",
      options.requeue ? kTries * options.num_nodes : 0, "\n",
      FailurePolicy(options.requeue),
      "  template:\n"
      "    spec:\n"
      "      subdomain: ",
      name,
      "\n"
      "      restartPolicy: Never\n"
      "      terminationGracePeriodSeconds: ",
      absl::ToInt64Seconds(options.warning), "\n");
  if (options.num_nodes > 1) {
    absl::StrAppend(
        &text,
        "      # An agent takes all of its host.\n"
        "      affinity:\n"
        "        podAntiAffinity:\n"
        "          requiredDuringSchedulingIgnoredDuringExecution:\n"
        "          - topologyKey: kubernetes.io/hostname\n"
        "            labelSelector:\n"
        "              matchLabels:\n"
        "                batch.kubernetes.io/job-name: ",
        name, "\n");
  }
  absl::StrAppend(&text,
                  "      containers:\n"
                  "      - name: agent\n"
                  "        image: ",
                  QuotedForYaml(options.image),
                  "\n"
                  "        command: [\"/bin/sh\", \"-c\"]\n"
                  "        args:\n        - ",
                  QuotedForYaml(CommandOf(name, options.num_nodes)), "\n");
  if (!volumes.empty()) {
    absl::StrAppend(
        &text, "        workingDir: ", QuotedForYaml(volumes[0].path), "\n");
  }
  absl::StrAppend(&text,
                  "        env:\n"
                  "        - name: ",
                  kSecretVariable,
                  "\n"
                  "          valueFrom:\n"
                  "            secretKeyRef: {name: ",
                  name, "-secret, key: secret}\n");
  if (options.gpus_per_node > 0) {
    absl::StrAppend(&text,
                    "        resources:\n"
                    "          limits: {nvidia.com/gpu: ",
                    options.gpus_per_node, "}\n");
  }
  if (options.requeue) {
    absl::StrAppend(
        &text, "        # Comes before SIGTERM: checkpoint, and exit code ",
        kRequeueExitCode,
        ".\n"
        "        lifecycle:\n"
        "          preStop:\n"
        "            exec: {command: [\"/bin/sh\", \"-c\", \"kill -USR1 "
        "1\"]}\n");
  }
  absl::StrAppend(&text,
                  "        volumeMounts:\n"
                  "        - {name: job, mountPath: /etc/millrace}\n"
                  "        - {name: shm, mountPath: /dev/shm}\n");
  for (size_t i = 0; i < volumes.size(); ++i) {
    absl::StrAppend(&text, "        - {name: volume-", i,
                    ", mountPath: ", QuotedForYaml(volumes[i].path), "}\n");
  }
  absl::StrAppend(&text,
                  "      volumes:\n"
                  "      - {name: job, configMap: {name: ",
                  name,
                  "}}\n"
                  "      - {name: shm, emptyDir: {medium: Memory}}\n");
  for (size_t i = 0; i < volumes.size(); ++i) {
    absl::StrAppend(&text, "      - {name: volume-", i,
                    ", persistentVolumeClaim: {claimName: ",
                    QuotedForYaml(volumes[i].claim), "}}\n");
  }
  return text;
}

}  // namespace millrace
