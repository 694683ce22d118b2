#include "planner/job/job_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>
#include <set>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/units.h"
#include "planner/job/job_keys.h"
#include "planner/layout/layout.h"
#include "tests/planner/job/job_file_testing.h"

namespace millrace {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Goal: a minimal job gets the documented defaults. Method: parse one and look
// at given, derived and default values.
TEST(JobFileTest, FillsDefaults) {
  const absl::StatusOr<JobSpec> job = ParseJob(kSmallJob, "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model.hidden, 64);
  EXPECT_EQ(job->model.num_kv_heads, 4);
  EXPECT_EQ(job->model.head_dim, 16);
  EXPECT_EQ(job->training.optimizer.learning_rate, 1e-3);
  EXPECT_EQ(job->training.optimizer.beta2, 0.95);
  EXPECT_EQ(job->data.text.size(), 1u);
  EXPECT_FALSE(job->layout.tensor.has_value());
  EXPECT_FALSE(job->resources.memory_per_device_bytes.has_value());
  EXPECT_EQ(job->profile, "auto");
}

// Goal: models that are only planned are read, and checked as a whole. Method:
// experts behind latent attention, whose heads follow from it; one slip each.
TEST(JobFileTest, ReadsPlannedModels) {
  const std::string planned = Changed(
      "  ffn_hidden: 96",
      "  ffn_hidden: 96\n  feed_forward: relu2\n  ties_embedding: true\n"
      "  moe: {num_experts: 8, experts_per_token: 2, expert_hidden: 24,"
      " num_shared_experts: 1, num_dense_layers: 1}\n"
      "  mla: {kv_rank: 16, nope_head_dim: 8, rope_head_dim: 4,"
      " value_head_dim: 8}");
  const absl::StatusOr<JobSpec> job = ParseJob(planned, "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model.feed_forward, FeedForward::kSquaredRelu);
  EXPECT_TRUE(job->model.ties_embedding);
  EXPECT_EQ(job->model.moe, (MixtureOfExperts{.num_experts = 8,
                                              .experts_per_token = 2,
                                              .expert_hidden = 24,
                                              .num_shared_experts = 1,
                                              .num_dense_layers = 1}));
  EXPECT_EQ(job->model.head_dim, 12);
  EXPECT_FALSE(job->model.is_llama());
  const absl::StatusOr<JobSpec> read = ParseJob(JobToYaml(*job), "job.yaml");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, *job);
  EXPECT_THAT(
      ErrorOf(absl::StrReplaceAll(planned, {{"relu2", "relu"}})),
      HasSubstr("model.feed_forward: expected swiglu, gelu, relu2, geglu or "
                "gelu_erf, found"));
  EXPECT_THAT(ErrorOf(absl::StrReplaceAll(
                  planned, {{"experts_per_token: 2", "experts_per_token: 9"}})),
              HasSubstr("model.moe.experts_per_token is 9"));
}

// Goal: products of 8 and 4 bits are read as bf16 with a format, and a width
// that no layer has may be left out. Method: both precisions; experts in all
// layers; then without them.
TEST(JobFileTest, ReadsFormatsAndModelsWithoutDenseLayers) {
  const std::string gpu =
      Changed("training:", "resources: {backend: cuda}\ntraining:");
  for (const auto& [name, format] :
       std::vector<std::pair<std::string, GemmFormat>>{
           {"fp8", GemmFormat::kFloat8},
           {"fp8_blockwise", GemmFormat::kFloat8Blocks},
           {"fp4", GemmFormat::kFloat4}}) {
    const absl::StatusOr<JobSpec> job = ParseJob(
        absl::StrReplaceAll(
            gpu, {{"training:\n",
                   absl::StrCat("training:\n  precision: ", name, "\n")}}),
        "job.yaml");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(PrecisionOf(job->training.precision), Precision::kBfloat16);
    EXPECT_EQ(GemmFormatOf(job->training.precision), format);
  }
  const std::string experts = Changed(
      "  ffn_hidden: 96",
      "  moe: {num_experts: 8, experts_per_token: 2, expert_hidden: 24}");
  const absl::StatusOr<JobSpec> job = ParseJob(experts, "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model.ffn_hidden, 0);
  EXPECT_THAT(ErrorOf(Changed("  ffn_hidden: 96", "  feed_forward: gelu")),
              HasSubstr("model.ffn_hidden: missing"));
}

// Goal: sizes carry units, and auto means absent. Method: the spellings a
// person might try.
TEST(JobFileTest, ReadsSizesAndAuto) {
  for (const auto& [text, bytes] :
       std::vector<std::pair<std::string, int64_t>>{{"20 MiB", 20 * kMiB},
                                                    {"1.5GiB", 3 * kGiB / 2},
                                                    {"2 MB", 2'000'000},
                                                    {"12345", 12345},
                                                    {"7 B", 7}}) {
    const absl::StatusOr<JobSpec> job = ParseJob(
        absl::StrCat(kSmallJob, "resources:\n  memory_per_device: ", text,
                     "\n  devices_per_agent: auto\nlayout: {tensor: 2, data: "
                     "auto}\n"),
        "job.yaml");
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->resources.memory_per_device_bytes, bytes) << text;
    EXPECT_EQ(job->layout.tensor, 2);
    EXPECT_FALSE(job->layout.data.has_value());
  }
  EXPECT_TRUE(ParseJob(absl::StrCat(kSmallJob, "layout: auto\n"), "j").ok());
  EXPECT_TRUE(ParseJob(absl::StrCat(kSmallJob, "checkpoint:\n"), "j").ok());
}

// Goal: what stages compute again may be a list. Method: one of four stages,
// and lists of what is none.
TEST(JobFileTest, ReadsRecomputeByStage) {
  const auto with = [](const std::string& recompute) {
    return absl::StrCat(kSmallJob, "layout: {recompute: ", recompute, "}\n");
  };
  const auto job =
      ParseJob(with("[full, selective, none, norm+qkv]"), "job.yaml");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->layout.recompute, "full, selective, none, norm+qkv");
  EXPECT_EQ(ParseJob(with("norm+gate_up"), "job.yaml")->layout.recompute,
            "norm+gate_up");
  for (const char* wrong : {"[full, auto]", "[full, most]", "[]", "[[full]]",
                            "norms", "norm+", "output+qkv", "norm+full"}) {
    EXPECT_THAT(ErrorOf(with(wrong)),
                HasSubstr("layout.recompute: expected auto, none, selective or "
                          "full, or ops joined as in norm+activation (norm, "
                          "activation, qkv, gate_up, output, attention, "
                          "dispatch; output only with norm), or a list of "
                          "these, one for each stage"))
        << wrong;
  }
}

// Goal: a mistyped key is reported with file, line and the key meant. Method:
// slips of each sort: letters, section, nothing alike.
TEST(JobFileTest, SuggestsTheNearestKey) {
  EXPECT_EQ(ErrorOf(Changed("  hidden: 64", "  hiden: 64")),
            "job.yaml:2: model.hidden: missing; expected an integer of at "
            "least 1\n"
            "job.yaml:4: model.hiden: unknown key; did you mean 'hidden'?");
  EXPECT_THAT(ErrorOf(absl::StrCat(kSmallJob, "seed: 3\n")),
              HasSubstr("job.yaml:16: seed: unknown key; did you mean "
                        "training.seed?"));
  EXPECT_THAT(
      ErrorOf(absl::StrCat(kSmallJob, "output:\n  qqqqqq: 1\n")),
      HasSubstr("output.qqqqqq: unknown key; known keys here: directory"));
  EXPECT_THAT(ErrorOf(absl::StrCat(kSmallJob, "model.hidden: 3\n")),
              HasSubstr("unknown key"));
  EXPECT_THAT(
      ErrorOf(absl::StrCat(kSmallJob, "layout:\n  tensor_chunks: 2\n")),
      HasSubstr("job.yaml:17: layout.tensor_chunks: unknown key; it was "
                "removed"));
}

// Goal: all errors at once, in the order of the file. Method: three in one.
TEST(JobFileTest, CollectsErrors) {
  EXPECT_EQ(ErrorOf(absl::StrReplaceAll(kSmallJob,
                                        {{"hidden: 64", "hidden: many"},
                                         {"steps: 10", "steps: 0"},
                                         {"global_batch: 8", "batch: [8]"}})),
            "job.yaml:4: model.hidden: expected an integer of at least 1, "
            "found 'many'\n"
            "job.yaml:11: training.global_batch: missing; expected an integer "
            "of at least 1\n"
            "job.yaml:12: training.steps: expected an integer of at least 1, "
            "found '0'\n"
            "job.yaml:13: training.batch: unknown key; known keys here: steps, "
            "global_batch, seed, precision, attention, bf16_end_layers, "
            "gradient_reduction, objective, dpo_beta, dpo_label_smoothing, "
            "deterministic, gradient_clip_norm, validation_interval_steps, "
            "validation_steps, optimizer");
}

// Goal: what cannot be a job is refused, naming key and expectation. Method:
// one wrong thing at a time.
TEST(JobFileTest, RefusesWrongValues) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {Changed("hidden: 64", "hidden: 64.5"), "found '64.5'"},
      {Changed("hidden: 64", "hidden: -64"), "at least 1, found '-64'"},
      {Changed("hidden: 64", "hidden: [64]"), "found a list"},
      {Changed("hidden: 64", "hidden:"), "found nothing"},
      {Changed("hidden: 64", "hidden: 99999999999999999999"), "model.hidden"},
      {Changed("hidden: 64", "hidden: 66"), "not divisible by heads 4"},
      {Changed("hidden: 64", "hidden: 64\n  hidden: 32"),
       "job.yaml:5: model.hidden: given twice, first on line 4"},
      {Changed("  heads: 4", "  heads: 4\n  kv_heads: 3"),
       "job.yaml:7: model: model.kv_heads is 3"},
      {Changed("hidden: 64", "hidden: 2147483648"),
       "found '2147483648'; the most is 2147483647"},
      {Changed("  heads: 4", "  heads: 4\n  head_dim: 1048578"),
       "found '1048578'; the most is 1048576"},
      {Changed("hidden: 64", "hidden: 8388608"),
       "job.yaml:6: model.head_dim: follows as 2097152 from hidden and heads"},
      {Changed("  heads: 4", "  heads: 4\n  moe: {experts_per_token: 2}"),
       "job.yaml:7: model: model.moe.num_experts is 0"},
      {Changed("global_batch: 8", "global_batch: 4000000"),
       "training.global_batch: expected an integer of at least 1, found "
       "'4000000'; the most is 1048576, because a plan lists every "
       "micro-batch of a step"},
      {Changed("1e-3", "0"), "a number above 0, found '0'"},
      {Changed("1e-3", "nan"), "found 'nan'"},
      {Changed("1e-3", "1e-3\n    beta1: 1"), "from 0 to below 1, found '1'"},
      {Changed("1e-3", "1e-3\n    decay: cosin"),
       "expected none, linear or cosine, found 'cosin'"},
      {Changed("1e-3", "1e-3\n    moments: fp16"),
       "training.optimizer.moments: expected fp32, bf16 or 8bit, found "
       "'fp16'"},
      {Changed("1e-3", "1e-3\n    min_learning_rate: 1"), "at most"},
      {Changed("1e-3", "1e-3\n    warmup_steps: 11"), "at most"},
      {Changed("steps: 10", "steps: 10\n  precision: fp16"),
       "training.precision: expected fp32, bf16, fp8, fp8_blockwise or fp4, "
       "found 'fp16'"},
      {Changed("steps: 10", "steps: 10\n  bf16_end_layers: 1"),
       "training.bf16_end_layers: expected 0 where training.precision is "
       "fp32, found 1"},
      {Changed("steps: 10", "steps: 10\n  attention: fp4"),
       "training.attention: expected bf16 or fp8, found 'fp4'"},
      {Changed("steps: 10", "steps: 10\n  attention: fp8"),
       "training.attention is fp8, but model.head_dim is 16, and attention in "
       "8 bits has head_dim 64 and 128; set training.attention to bf16"},
      {absl::StrReplaceAll(
           kSmallJob,
           {{"  heads: 4", "  heads: 4\n  head_dim: 64\n  sliding_window: 8"},
            {"steps: 10", "steps: 10\n  attention: fp8"}}),
       "model.sliding_window is 8, and attention in 8 bits has no window"},
      {absl::StrReplaceAll(kSmallJob,
                           {{"  heads: 4",
                             "  heads: 4\n  head_dim: 64\n  "
                             "attention_softcap: 50"},
                            {"steps: 10", "steps: 10\n  attention: fp8"}}),
       "model.attention_softcap is 50, and attention in 8 bits has no softcap"},
      {absl::StrReplaceAll(
           kSmallJob,
           {{"  heads: 4", "  heads: 4\n  head_dim: 64"},
            {"steps: 10", "steps: 10\n  attention: fp8"},
            {"name: small", "name: small\nresources: {backend: cuda}"}}),
       "training.attention: fp8 reads on GPUs what is stored in bf16, and "
       "training.precision is fp32; set precision: bf16, fp8 or "
       "fp8_blockwise"},
      {Changed("steps: 10",
               "steps: 10\n  precision: fp8\n  bf16_end_layers: 9"),
       "training.bf16_end_layers is 9; it must be from 0 to half of "
       "model.layers"},
      {Changed("steps: 10", "steps: 10\n  gradient_reduction: fp16"),
       "training.gradient_reduction: expected fp32, bf16, bf16_across or "
       "auto, found 'fp16'"},
      {Changed("steps: 10", "steps: 10\n  precision: bf16"),
       "training.precision: bf16 is trained on GPUs only; set "
       "resources.backend: cuda"},
      {Changed("  text:", "  synthetic: yes\n  text:"),
       "data.synthetic: expected true or false, found 'yes'"},
      {Changed("  text:", "  synthetic: true\n  text:"),
       "job.yaml:11: data.text: given together with data.synthetic"},
      {absl::StrCat(kSmallJob, "checkpoint: {at_end: [true]}\n"),
       "checkpoint.at_end: expected true or false, found a list"},
      {Changed("[\"/usr/include/**/*.h\"]", "all"), "expected a list of texts"},
      {Changed("[\"/usr/include/**/*.h\"]", "[]"), "found none of them"},
      {Changed("  text:", "  indexed: [a]\n  text:"), "keep one of the two"},
      {Changed("name: small", "name: a/b"), "name: expected letters"},
      {Changed("name: small", "name: ../x"), "name: expected letters"},
      {Changed("name: small", "name: \"\""), "name: expected letters"},
      {absl::StrCat(kSmallJob, "layout: 4\n"), "expected auto or a section"},
      {absl::StrCat(kSmallJob, "layout: {zero: 4}\n"),
       "auto or an integer from 0 to 3, found '4'"},
      {absl::StrCat(kSmallJob, "output: [1]\n"), "found a list"},
      {absl::StrCat(kSmallJob, "fault: {heartbeat_timeout_ms: 100}\n"),
       "above heartbeat_interval_ms 200, found 100"},
      {absl::StrCat(kSmallJob, "fault: {coordinator_replicas: 2}\n"),
       "fault.coordinator_replicas: expected 0 or at least 3, found 2: a "
       "majority of 2 is 2"},
      {absl::StrCat(kSmallJob, "fault: {replica_partners: 3}\n"),
       "fault.replica_partners: expected an integer from 1 to 2, found '3'"},
      {absl::StrCat(kSmallJob, "fault: {replica_partners: 0}\n"),
       "expected an integer from 1 to 2, found '0'"},
      {absl::StrCat(kSmallJob, "fault: {replica_partners: two}\n"),
       "expected an integer from 1 to 2, found 'two'"},
      {absl::StrCat(
           kSmallJob,
           "fault: {replica_partners: 2, replica_interval_steps: 0}\n"),
       "fault.replica_partners: expected 1 with replica_interval_steps 0"},
      {absl::StrCat(kSmallJob, "data2:\n  - x: ]\n"), "not valid YAML"},
      {absl::StrCat(kSmallJob, "---\nname: b\n"), "second YAML document"},
      {"[a], b\n", "job.yaml:1: not valid YAML: a second YAML document"},
      {absl::StrCat(kSmallJob, "output: &a {x: *a}\n"), "nested deeper"},
      {absl::StrCat(kSmallJob, "? [a]\n: 1\n"), "a key must be a plain word"},
      {"", "expected a map of sections"},
      {"- a\n", "found a list"},
      {"\t", "job.yaml:1: "},
  };
  for (const auto& [yaml, message] : cases) {
    EXPECT_THAT(ErrorOf(yaml), HasSubstr(message)) << yaml;
    EXPECT_THAT(ErrorOf(yaml), HasSubstr("job.yaml:")) << yaml;
  }
}

// Goal: an objective without what it follows from is refused, and so are
// failures without the time of a checkpoint; whole sections are read.
TEST(JobFileTest, GoodputNeedsWhatItFollowsFrom) {
  const auto parse = [](const char* keys) {
    return ParseJob(absl::StrCat(kSmallJob, "goodput: {", keys, "}\n"),
                    "job.yaml");
  };
  EXPECT_THAT(parse("objective: goodput").status().message(),
              HasSubstr("mean_time_between_failures_hours"));
  EXPECT_THAT(parse("objective: cost").status().message(),
              HasSubstr("price_per_device_hour"));
  EXPECT_THAT(
      parse("mean_time_between_failures_hours: 50000").status().message(),
      HasSubstr("checkpoint_bytes_per_second"));
  EXPECT_THAT(parse("spare_confidence: 1").status().message(),
              HasSubstr("a number from 0 to below 1"));
  // A time between failures in years, or of the cluster.
  EXPECT_THAT(
      parse("mean_time_between_failures_hours: 5.7, checkpoint_seconds: 2")
          .status()
          .message(),
      HasSubstr("a device fails every 5.7 hours and takes 24 to repair"));
  EXPECT_TRUE(parse("mean_time_between_failures_hours: 5.7, repair_share: 0.2, "
                    "checkpoint_seconds: 2")
                  .ok());
  const absl::StatusOr<JobSpec> job = parse(
      "objective: goodput, mean_time_between_failures_hours: 50000, "
      "checkpoint_seconds: 2.5, checkpoint_bytes_per_second: 2 GB");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->goodput.checkpoint_seconds, 2.5);
  EXPECT_EQ(job->goodput.checkpoint_bytes_per_second, 2'000'000'000);
}

TEST(JobFileTest, NamesTheMissingFile) {
  const absl::StatusOr<JobSpec> job = LoadJob("no/such/job.yaml");
  EXPECT_FALSE(job.ok());
  EXPECT_THAT(job.status().ToString(), HasSubstr("no/such/job.yaml"));
}

// Goal: what is no job is refused at once, whatever kind of file it is. Method:
// an endless device, a pipe that nobody writes to, a folder, and text that is
// not UTF-8 on its second line.
TEST(JobFileTest, RefusesWhatIsNoJob) {
  const std::string pipe =
      absl::StrCat(::testing::TempDir(), "/job_file_test.pipe.", getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const auto& [path, what] :
       {std::pair<std::string, const char*>{"/dev/zero", "is a device"},
        {pipe, "is a pipe"},
        {"/", "is a folder"}}) {
    const absl::StatusOr<JobSpec> job = LoadJob(path);
    EXPECT_THAT(job.status().ToString(), HasSubstr(what));
    EXPECT_THAT(job.status().ToString(), HasSubstr("a regular file"));
  }
  unlink(pipe.c_str());
  EXPECT_THAT(
      ParseJob("name: a\nmodel: \xff\n", "job.yaml").status().ToString(),
      HasSubstr("job.yaml:2: not UTF-8 text"));
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(
      ParseJob(absl::StrCat("\na: ", deep), "job.yaml").status().ToString(),
      HasSubstr("job.yaml:2: nested deeper than 32 levels"));
  const std::string deeper(5'000, '[');
  EXPECT_THAT(
      ParseJob(absl::StrCat("\na: ", deeper), "job.yaml").status().ToString(),
      HasSubstr("nested deeper than 32 levels"));
}

// Goal: JobToYaml spells out everything, so that the run directory's job.yaml
// is the job. Method: random jobs, written and read back, must be equal, field
// by field.
TEST(JobFileTest, RoundTrips) {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t end) { return random() % end; };
  const auto real = [&] {
    return std::uniform_real_distribution<double>(1e-12, 0.9)(random);
  };
  const auto text = [&] {
    static const std::string kLetters = "ab \"'\\#:\n\t{}[]*&é-?,auto~";
    std::string value;
    const uint64_t length = 1 + below(9);
    for (uint64_t i = 0; i < length; ++i) {
      const char c = kLetters[below(kLetters.size())];
      if ((c & 0x80) == 0) value.push_back(c);  // No halves of characters.
    }
    return value + "é";
  };
  for (int round = 0; round < 200; ++round) {
    JobSpec job;
    job.name = absl::StrCat("job-", round);
    const auto kv_heads = static_cast<int64_t>(1 + below(4));
    const auto head_dim = static_cast<int64_t>(2 * (1 + below(40)));
    job.model = {.vocab_size = static_cast<int64_t>(1 + below(1000)),
                 .hidden = static_cast<int64_t>(1 + below(1000)),
                 .num_layers = static_cast<int64_t>(1 + below(9)),
                 .num_heads = kv_heads * static_cast<int64_t>(1 + below(3)),
                 .num_kv_heads = kv_heads,
                 .head_dim = head_dim,
                 .ffn_hidden = static_cast<int64_t>(1 + below(999)),
                 .sequence_length = static_cast<int64_t>(1 + below(999)),
                 .rope_theta = 1 + 1e5 * real(),
                 .norm_epsilon = real(),
                 .init_std = real()};
    const uint64_t source = below(4);
    if (source == 0) job.data.text = {text(), text()};
    if (source == 1) job.data.indexed = {text()};
    job.data.synthetic = source == 2;
    if (source == 3) {
      const char* const formats[] = {"auto", "text", "jsonl", "parquet",
                                     "indexed"};
      for (uint64_t i = 0; i <= below(3); ++i) {
        job.data.sources.push_back({.files = {text() + "a", text() + "b"},
                                    .format = formats[below(5)],
                                    .column = text() + "c",
                                    .weight = 0.001 + real()});
      }
      job.data.sources.push_back(
          {.files = {text() + "a"},
           .format = formats[2 + below(2)],
           .kind = "chat",
           .train_on = below(2) == 0 ? "all" : "assistant",
           .column = below(2) == 0 ? "" : "talk"});
    }
    job.data.broken_records = static_cast<int64_t>(below(100));
    job.data.tokenizer = text();
    job.data.chat_template = text();
    job.data.chat_date = below(2) == 0 ? "" : "2026-11-23";
    job.data.packing = below(2) == 0;
    job.data.long_samples = below(2) == 0 ? "cut" : "drop";
    job.data.validation_fraction = real();
    if (source != 3) {
      job.data.max_bytes = static_cast<int64_t>(below(1 << 30));
    }
    job.data.cache_directory = text();
    if (!job.data.synthetic) job.data.from = text();
    job.training.num_steps = static_cast<int64_t>(100 + below(1000));
    job.training.global_batch = static_cast<int64_t>(1 + below(1000));
    job.training.seed = below(uint64_t{1} << 50);
    job.training.deterministic = below(2) == 0;
    job.training.gradient_clip_norm = real();
    job.training.optimizer = {.learning_rate = 1 + real(),
                              .min_learning_rate = real(),
                              .warmup_steps = static_cast<int64_t>(below(100)),
                              .decay = static_cast<LearningRateDecay>(below(3)),
                              .beta1 = real(),
                              .beta2 = real(),
                              .epsilon = real(),
                              .weight_decay = real()};
    if (below(2) == 0) job.resources.backend = "cuda";
    if (job.resources.uses_cuda() && below(2) == 0) {
      job.training.precision = below(2) == 0 ? "bf16" : "fp8";
    }
    if (below(2) == 0) job.resources.devices_per_agent = 1 + below(9);
    if (below(2) == 0) job.resources.memory_per_device_bytes = kMiB * 3 + round;
    if (below(2) == 0) job.layout.tensor = 1 + below(4);
    if (below(2) == 0) job.layout.zero = below(4);
    if (below(2) == 0) {
      job.layout.recompute = below(2) == 0   ? "norm+output"
                             : below(2) == 0 ? "selective"
                                             : "full, norm+qkv";
    }
    job.checkpoint.directory = text();
    job.checkpoint.interval_steps = static_cast<int64_t>(below(99));
    job.checkpoint.at_end = below(2) == 0;
    job.exports = {.every = static_cast<int64_t>(below(99)),
                   .directory = text(),
                   .keep = static_cast<int32_t>(below(9))};
    if (source != 2 && below(2) == 0) {
      job.evaluation = {
          .interval_steps = 5,
          .max_sequences = static_cast<int64_t>(below(9)),
          .sets = {{"held-out_1",
                    {.files = {text() + "a", text() + "b"}, .format = "text"}},
                   {"b", {.files = {"x.bin"}, .format = "text"}},
                   {"c", {.files = {"y.jsonl"}, .kind = "chat", .column = ""}},
                   {"d", {.files = {"z"}, .format = "jsonl"}}}};
    }
    job.metrics = {.tensorboard = below(2) == 0,
                   .mlflow = text(),
                   .textfile = text() + ".prom",
                   .port = static_cast<int32_t>(below(65536)),
                   .address = below(2) == 0 ? "0.0.0.0" : "::1"};
    job.output_directory = text();
    job.profile = text();
    const absl::StatusOr<JobSpec> read = ParseJob(JobToYaml(job), "job.yaml");
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << JobToYaml(job);
    EXPECT_TRUE(*read == job) << JobToYaml(job);
    EXPECT_EQ(JobToYaml(*read), JobToYaml(job));
  }
}

// Goal: docs/job.md documents every key as the reader reads it, and no other.
// Method: its list must be the one that the key table prints.
TEST(JobFileTest, DocumentationMatches) {
  std::ifstream file("docs/job.md");
  ASSERT_TRUE(file) << "run from the repository's root";
  std::stringstream text;
  text << file.rdbuf();
  EXPECT_THAT(text.str(), HasSubstr(JobKeysAsMarkdown()));
  std::set<std::string> paths;
  for (const JobKey& key : JobKeys()) {
    EXPECT_TRUE(paths.insert(key.path).second) << key.path;
  }
}

}  // namespace
}  // namespace millrace
