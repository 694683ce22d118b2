#include "planner/frameworks/import.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "planner/frameworks/settings.h"
#include "planner/job/job_file.h"
#include "tests/planner/frameworks/framework_testing.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFlags[] = R"(# A small model.
torchrun --nproc_per_node 8 pretrain_gpt.py \
  --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2 \
  --num-layers 8 --hidden-size 512 --num-attention-heads 8 \
  --seq-length 1024 --max-position-embeddings 1024 \
  --micro-batch-size 2 --global-batch-size 32 \
  --swiglu --normalization RMSNorm --position-embedding-type rope \
  --untie-embeddings-and-output-weights --disable-bias-linear \
  --vocab-size 32000 --train-iters 100 --lr 3e-4 --bf16
)";

// The same model as overrides of recipes.
constexpr char kBridge[] = R"(torchrun --nproc_per_node 8 run_recipe.py \
  --recipe vanilla_gpt_pretrain_config model.num_layers=8 \
  model.hidden_size=512 model.num_attention_heads=8 model.num_query_groups=8 \
  model.ffn_hidden_size=1344 model.activation_func=silu \
  model.gated_linear_unit=true model.normalization=RMSNorm \
  model.share_embeddings_and_output_weights=false model.add_bias_linear=false \
  model.position_embedding_type=rope model.vocab_size=32000 \
  model.tensor_model_parallel_size=2 model.pipeline_model_parallel_size=2 \
  model.context_parallel_size=1 model.expert_model_parallel_size=1 \
  model.expert_tensor_parallel_size=1 \
  dataset.seq_length=1024 train.micro_batch_size=2 train.global_batch_size=32 \
  train.train_iters=100 optimizer.lr=3e-4 mixed_precision=bf16_mixed
)";

constexpr char kNemo[] = R"(nemo llm pretrain --factory llama3_8b \
  model.config.num_layers=8 model.config.hidden_size=512 \
  model.config.num_attention_heads=8 model.config.num_query_groups=8 \
  model.config.ffn_hidden_size=1344 model.config.gated_linear_unit=true \
  model.config.normalization=RMSNorm model.config.add_bias_linear=false \
  model.config.share_embeddings_and_output_weights=false \
  model.config.position_embedding_type=rope model.config.vocab_size=32000 \
  trainer.strategy.tensor_model_parallel_size=2 \
  trainer.strategy.pipeline_model_parallel_size=2 \
  trainer.strategy.context_parallel_size=1 \
  trainer.strategy.expert_model_parallel_size=1 \
  trainer.strategy.expert_tensor_parallel_size=1 trainer.devices=8 \
  data.seq_length=1024 data.micro_batch_size=2 data.global_batch_size=32 \
  optim.config.use_distributed_optimizer=false
)";

absl::StatusOr<ImportedJob> Import(Framework framework, const std::string& text,
                                   const ImportOptions& options = {}) {
  absl::StatusOr<Settings> settings =
      framework == MegatronAdapter() ? ReadMegatronSettings(text, "args.txt")
      : framework == MegatronBridgeAdapter() || framework == NemoAdapter()
          ? ReadOverrideSettings(text, "run.sh")
      : framework == TorchtitanAdapter()
          ? ReadTomlSettings(text, "job.toml")
          : ReadJsonSettings(text, "config.json");
  if (!settings.ok()) return settings.status();
  return ImportJob(framework, *settings, options);
}

std::string ErrorOf(Framework framework, const std::string& text,
                    const ImportOptions& options = {}) {
  const absl::StatusOr<ImportedJob> imported = Import(framework, text, options);
  if (imported.ok()) return "no error";
  EXPECT_EQ(imported.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(imported.status().message());
}

// Goal: the job file that an import writes is a job file, and equals the job.
// Method: read it back, for each framework.
TEST(ImportTest, WritesJobFiles) {
  for (const auto& [framework, text] :
       {std::pair{HuggingFaceAdapter(), kHuggingFaceConfig},
        std::pair{MegatronAdapter(), kFlags},
        std::pair{TorchtitanAdapter(), kToml}}) {
    const absl::StatusOr<ImportedJob> imported = Import(framework, text);
    ASSERT_TRUE(imported.ok()) << imported.status();
    const std::string yaml =
        ImportedJobToYaml(*imported, framework, "the file");
    const absl::StatusOr<JobSpec> job = ParseJob(yaml, "job.yaml");
    ASSERT_TRUE(job.ok()) << job.status() << yaml;
    EXPECT_EQ(*job, imported->job);
  }
}

// Goal: flags are read as Megatron-LM means them, its defaults among them.
// Method: a small command line; vocabulary, width and replicas by hand.
TEST(ImportTest, TakesMegatronFlags) {
  const absl::StatusOr<ImportedJob> imported =
      Import(MegatronAdapter(), kFlags);
  ASSERT_TRUE(imported.ok()) << imported.status();
  const JobSpec& job = imported->job;
  EXPECT_EQ(job.model.vocab_size, 32000);  // 125 x 256, no padding.
  EXPECT_EQ(job.model.ffn_hidden, 1344);   // 64 x floor(8/3 x 512 / 64).
  EXPECT_EQ(job.model.num_kv_heads, 8);
  EXPECT_EQ(job.layout, (LayoutConstraints{.pipeline = 2,
                                           .data = 2,
                                           .tensor = 2,
                                           .micro_batch = 2,
                                           .zero = 0,
                                           .context = 1,
                                           .expert = 1,
                                           .expert_tensor = 1}));
  EXPECT_EQ(job.training.optimizer.beta2, 0.999);
  EXPECT_EQ(job.training.optimizer.decay, LearningRateDecay::kLinear);
  EXPECT_EQ(job.training.seed, 1234u);
  const absl::StatusOr<ImportedJob> padded =
      Import(MegatronAdapter(),
             Changed(kFlags, "--vocab-size 32000", "--vocab-size 32001"));
  ASSERT_TRUE(padded.ok()) << padded.status();
  EXPECT_EQ(padded->job.model.vocab_size, 32256);
}

// Goal: flags without what starts them are taken with the number of devices.
// Method: tensor 2 x pipeline 2 on 16; another number than the flags say.
TEST(ImportTest, TakesTheDevicesOfAWholeJob) {
  const std::string bare = Changed(kFlags, "--nproc_per_node 8 ", "");
  const absl::StatusOr<ImportedJob> megatron =
      Import(MegatronAdapter(), bare, {.num_devices = 16});
  ASSERT_TRUE(megatron.ok()) << megatron.status();
  EXPECT_EQ(megatron->job.layout.data, 4);
  EXPECT_THAT(
      Import(MegatronAdapter(), kFlags, {.num_devices = 16}).status().message(),
      HasSubstr("is for 8 devices, but --devices is 16"));
}

// Goal: the three notations say the same. Method: one model as flags, as a
// printed list and as YAML.
TEST(ImportTest, ReadsEveryMegatronNotation) {
  const std::string dump =
      R"(------------------------ arguments ------------------------
  add_bias_linear ................................. False
  bf16 ............................................ True
  global_batch_size ............................... 32
  hidden_size ..................................... 512
  lr .............................................. 0.0003
  max_position_embeddings ......................... 1024
  micro_batch_size ................................ 2
  normalization ................................... RMSNorm
  num_attention_heads ............................. 8
  num_experts ..................................... None
  num_layers ...................................... 8
  num_query_groups ................................ 1
  group_query_attention ........................... False
  pipeline_model_parallel_size .................... 2
  position_embedding_type ......................... rope
  seq_length ...................................... 1024
  swiglu .......................................... True
  tensor_model_parallel_size ...................... 2
  train_iters ..................................... 100
  untie_embeddings_and_output_weights ............. True
  vocab_size ...................................... 32000
  world_size ...................................... 8
-------------------- end of arguments ---------------------
)";
  const absl::StatusOr<ImportedJob> flags = Import(MegatronAdapter(), kFlags);
  const absl::StatusOr<ImportedJob> printed = Import(MegatronAdapter(), dump);
  ASSERT_TRUE(flags.ok() && printed.ok()) << printed.status();
  EXPECT_EQ(flags->job, printed->job);
  std::string yaml;
  for (const absl::string_view line : absl::StrSplit(dump, '\n')) {
    const size_t dots = line.find(" ..");
    if (dots == absl::string_view::npos) continue;
    absl::StrAppend(&yaml, absl::StripAsciiWhitespace(line.substr(0, dots)),
                    ": ", line.substr(line.rfind(' ') + 1), "\n");
  }
  const absl::StatusOr<Settings> settings =
      ReadMegatronSettings(yaml, "args.yaml");
  ASSERT_TRUE(settings.ok()) << settings.status();
  const absl::StatusOr<ImportedJob> from_yaml =
      ImportJob(MegatronAdapter(), *settings, {});
  ASSERT_TRUE(from_yaml.ok()) << from_yaml.status();
  EXPECT_EQ(flags->job, from_yaml->job);
}

// Goal: contradictions and foreign models are refused by file, line and flag.
TEST(ImportTest, RefusesMegatronContradictions) {
  const struct {
    const char* from;
    const char* to;
    const char* error;
  } cases[] = {
      {"--tensor-model-parallel-size 2", "--tensor-model-parallel-size 3",
       "args.txt:3: tensor-model-parallel-size: 3 x "
       "pipeline-model-parallel-size 2 = 6 does not divide the 8 devices"},
      {"--num-attention-heads 8", "--num-attention-heads 1",
       "args.txt:3: tensor-model-parallel-size: 2 equal shards cannot be cut "
       "from num-attention-heads 1"},
      {"--global-batch-size 32", "--global-batch-size 33",
       "args.txt:6: global-batch-size: 33 sequences cannot be cut into "
       "micro-batches of 2 on 2 data replicas; use a multiple of 4"},
      {"--num-layers 8", "--num-layers 1",
       "args.txt:3: pipeline-model-parallel-size: 2 stages, but num-layers is "
       "1"},
      {"--max-position-embeddings 1024", "--max-position-embeddings 512",
       "args.txt:5: max-position-embeddings: 512 is below seq-length 1024"},
      {"--swiglu", "--swiglu --squared-relu",
       "args.txt:7: squared-relu: contradicts swiglu"},
      {"--disable-bias-linear", "",
       "args.txt: disable-bias-linear: missing; ours is of the Llama family"},
      {"--bf16", "--window-size 8", "args.txt:9: window-size: found '8'"},
      {"--num-layers 8", "--num-layer 8",
       "args.txt: num-layers: missing; expected an integer from 1 to 10000; is "
       "'num-layer' on line 4 meant?"},
      {"--num-layers 8", "--num-layers $LAYERS",
       "args.txt:4: num-layers: '$LAYERS' is a shell variable"},
      {"--lr 3e-4", "--lr 3e-4 --lr 1e-4",
       "args.txt:9: lr: given twice, first on line 9"},
      {"--lr 3e-4", "--lr '3e-4", "args.txt:9: a quote that is never closed"},
      {"--lr 3e-4", "--lr fast",
       "args.txt:9: lr: expected a number above 0, found 'fast'"},
      {"--bf16", "--lr-decay-style WSD",
       "args.txt:9: lr-decay-style: found 'WSD'"},
      {"--vocab-size 32000", "", "args.txt: vocab-size: missing"},
      {"--micro-batch-size 2", "", "args.txt: micro-batch-size: missing"},
  };
  for (const auto& [from, to, error] : cases) {
    EXPECT_THAT(ErrorOf(MegatronAdapter(), Changed(kFlags, from, to)),
                HasSubstr(error));
  }
  EXPECT_THAT(ErrorOf(MegatronAdapter(), "num_layers\n"),
              HasSubstr("args.txt:1: expected a flag"));
}

// Goal: a mistake is told in one line, that of the mistake; sizes that no
// machine has are mistakes, too. Method: one change each, whole messages.
TEST(ImportTest, TellsAMistakeOnce) {
  const struct {
    const char* from;
    const char* to;
    const char* error;
  } cases[] = {
      {"--vocab-size 32000", "",
       "args.txt: vocab-size: missing; Megatron-LM takes it from the "
       "tokenizer, which is not at hand: give --vocab-size N"},
      {"--vocab-size 32000", "--vocab-size 9223372036854775807",
       "args.txt:9: vocab-size: expected an integer from 1 to 2147483647, "
       "found '9223372036854775807'"},
      {"--num-layers 8", "--num-layers many",
       "args.txt:4: num-layers: expected an integer from 1 to 10000, found "
       "'many'"},
      {"--bf16", "--bf16 --fp16",
       "args.txt:9: fp16: contradicts bf16; remove one"},
      {"--bf16", "--attention-dropout some",
       "args.txt:9: attention-dropout: expected a number, found 'some'"},
      {"--bf16", "--world-size 9223372036854775807",
       "args.txt:9: world-size: expected an integer from 1 to 2147483647, "
       "found '9223372036854775807'"},
      {"--bf16", "--pipeline-model-parallel-layout 'Et('",
       "args.txt:9: pipeline-model-parallel-layout: expected text such as "
       "'Et*3|(t|)*2tL', found 'Et('"},
      {"--pipeline-model-parallel-size 2",
       "--num-virtual-stages-per-pipeline-rank 2",
       "args.txt:3: num-virtual-stages-per-pipeline-rank: asks for 2 chunks a "
       "stage, but there is one stage, which has no bubble to fill; remove "
       "it"},
  };
  for (const auto& [from, to, error] : cases) {
    EXPECT_EQ(ErrorOf(MegatronAdapter(), Changed(kFlags, from, to)), error);
  }
  EXPECT_THAT(ErrorOf(HuggingFaceAdapter(),
                      Changed(kHuggingFaceConfig, "\"llama\"", "\"bloom\"")),
              Not(HasSubstr("missing")));
  EXPECT_THAT(ErrorOf(TorchtitanAdapter(), Changed(kToml, "debugmodel", "9B")),
              Not(HasSubstr("missing")));
  EXPECT_EQ(ErrorOf(TorchtitanAdapter(), Changed(kToml, "warmup_steps = 2",
                                                 "min_lr_factor = \"x\"")),
            "job.toml:10: lr_scheduler.min_lr_factor: expected a number from 0 "
            "to 1, found 'x'");
}

// Goal: what the flags ask for and this version cannot do is said in the file,
// and what is only planned is taken. Method: some of each.
TEST(ImportTest, SaysWhatItCannotDo) {
  const absl::StatusOr<ImportedJob> imported =
      Import(MegatronAdapter(),
             Changed(kFlags, "--bf16",
                     "--context-parallel-size 2 --recompute-granularity full "
                     "--num-layers-per-virtual-pipeline-stage 2 --no-such 1"));
  ASSERT_TRUE(imported.ok()) << imported.status();
  EXPECT_EQ(imported->job.layout,
            (LayoutConstraints{.pipeline = 2,
                               .data = 1,
                               .tensor = 2,
                               .micro_batch = 2,
                               .zero = 0,
                               .context = 2,
                               .expert = 1,
                               .expert_tensor = 1,
                               .interleave = 2,
                               .recompute = "full",
                               .schedule = "interleaved"}));
  EXPECT_THAT(ImportedJobToYaml(*imported, MegatronAdapter(), "args.txt"),
              AllOf(HasSubstr("not used: "), HasSubstr("no-such"),
                    HasSubstr("attention-dropout 0.1")));
  EXPECT_THAT(
      ErrorOf(MegatronAdapter(),
              Changed(kFlags, "--bf16",
                      "--num-layers-per-virtual-pipeline-stage 3")),
      HasSubstr("args.txt:9: num-layers-per-virtual-pipeline-stage: 3 layers a "
                "chunk do not divide the 8 layers of 2 stages"));
}

// Goal: a run of Megatron-Bridge and one of NeMo become the job that the same
// flags of Megatron-LM make. Method: the flags above as overrides, as YAML, and
// errors by their own keys.
TEST(ImportTest, TakesOverridesOfRecipes) {
  const absl::StatusOr<ImportedJob> flags = Import(MegatronAdapter(), kFlags);
  ASSERT_TRUE(flags.ok()) << flags.status();
  const absl::StatusOr<ImportedJob> bridge =
      Import(MegatronBridgeAdapter(), kBridge);
  ASSERT_TRUE(bridge.ok()) << bridge.status();
  EXPECT_EQ(bridge->job.model, flags->job.model);
  EXPECT_EQ(bridge->job.layout, flags->job.layout);
  EXPECT_EQ(bridge->job.training.precision, "bf16");
  EXPECT_EQ(bridge->job.training.num_steps, 100);
  EXPECT_THAT(bridge->notes, testing::Contains(HasSubstr(
                                 "recipe vanilla_gpt_pretrain_config: its own "
                                 "values are not known")));

  const absl::StatusOr<ImportedJob> nemo = Import(NemoAdapter(), kNemo);
  ASSERT_TRUE(nemo.ok()) << nemo.status();
  EXPECT_EQ(nemo->job.model, flags->job.model);
  EXPECT_EQ(nemo->job.layout, flags->job.layout);

  EXPECT_THAT(ErrorOf(MegatronBridgeAdapter(),
                      Changed(kBridge, "num_layers=8", "num_layers=x")),
              HasSubstr("run.sh:2: model.num_layers: expected an integer"));
  EXPECT_THAT(ErrorOf(MegatronBridgeAdapter(),
                      Changed(kBridge, "model.gated_linear_unit=true ", "")),
              HasSubstr("run.sh: model.gated_linear_unit: missing"));
  EXPECT_THAT(
      ErrorOf(MegatronBridgeAdapter(),
              Changed(kBridge, "activation_func=silu", "activation_func=gelu")),
      HasSubstr("run.sh:4: model.activation_func: found 'gelu'"));
  EXPECT_THAT(
      ErrorOf(NemoAdapter(), Changed(kNemo, "devices=8", "devices=6")),
      HasSubstr("trainer.strategy.tensor_model_parallel_size: 2 x "
                "trainer.strategy.pipeline_model_parallel_size 2 = 4 does not "
                "divide the 6 devices"));
  EXPECT_THAT(
      ErrorOf(MegatronBridgeAdapter(),
              Changed(kBridge, "--nproc_per_node 8", "--nproc_per_node 6")),
      HasSubstr("model.tensor_model_parallel_size: 2 x "
                "model.pipeline_model_parallel_size 2 = 4 does not "
                "divide the 6 devices"));

  // The same nested, as the file of a whole run.
  const std::string yaml =
      "model:\n  num_layers: 8\n  hidden_size: 512\n"
      "  num_attention_heads: 8\n  num_query_groups: 8\n"
      "  ffn_hidden_size: 1344\n  gated_linear_unit: true\n"
      "  activation_func:\n    _target_: torch.nn.functional.silu\n"
      "  share_embeddings_and_output_weights: false\n"
      "  add_bias_linear: false\n  normalization: RMSNorm\n"
      "  position_embedding_type: rope\n  vocab_size: 32000\n"
      "  virtual_pipeline_model_parallel_size: null\n"
      "dataset:\n  seq_length: 1024\n"
      "train:\n  micro_batch_size: 2\n  global_batch_size: 32\n";
  const absl::StatusOr<Settings> settings =
      ReadOverrideSettings(yaml, "run_config.yaml");
  ASSERT_TRUE(settings.ok()) << settings.status();
  const absl::StatusOr<ImportedJob> nested =
      ImportJob(MegatronBridgeAdapter(), *settings, {});
  ASSERT_TRUE(nested.ok()) << nested.status();
  ModelSpec expected = flags->job.model;
  expected.rope_theta = nested->job.model.rope_theta;
  EXPECT_EQ(nested->job.model, expected);
}

// Goal: nothing in a file can leave the comments it is told in. Method: a key
// with line ends in it, read back as a job.
TEST(ImportTest, KeepsNotesInTheirComments) {
  const absl::StatusOr<ImportedJob> imported =
      Import(TorchtitanAdapter(),
             Changed(kToml, "steps = 1_000", "\"a\\nname: stolen\\r\" = 1"));
  ASSERT_TRUE(imported.ok()) << imported.status();
  const absl::StatusOr<JobSpec> job = ParseJob(
      ImportedJobToYaml(*imported, TorchtitanAdapter(), "a\nb: c"), "y");
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(*job, imported->job);
}

}  // namespace
}  // namespace millrace
