#include "planner/diagnose/trace_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace millrace {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSampleTrace[] = "tests/data/diagnose/three_steps.json";

absl::StatusOr<Trace> Read(const std::string& text) {
  std::istringstream input(text);
  return ReadTrace(input, "trace.json");
}

// The events in a document with the given list.
absl::StatusOr<Trace> ReadEvents(const std::string& events) {
  return Read(absl::StrCat(R"({"traceEvents": [)", events, "]}"));
}

// Goal: every field that the diagnosis needs arrives, whatever stands around
// it. Method: one event of each sort among events and keys of no interest.
TEST(TraceReaderTest, ReadsTheFields) {
  const absl::StatusOr<Trace> trace = Read(R"({
    "schemaVersion": 1,
    "deviceProperties": [{"id": 1, "name": "A GPU", "limits": {"id": 9}}],
    "distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8,
                        "pg_config": [{"rank": 77}]},
    "traceEvents": [
      {"ph": "M", "name": "process_name", "pid": 5, "args": {"name": "x"}},
      {"ph": "X", "cat": "python_function", "name": "f", "ts": 1, "dur": 9},
      {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 5, "tid": 6,
       "ts": 1, "dur": 2, "args": {"External id": 4, "Input Dims": [[1], []]}},
      {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "tid": 6,
       "ts": 1.5, "dur": 0.25, "args": {"correlation": 11}},
      {"ph": "X", "cat": "cuda_runtime", "name": "cudaGetDevice", "tid": 6,
       "ts": 1.5, "dur": 0.25, "args": {"correlation": 12}},
      {"ph": "s", "cat": "ac2g", "name": "ac2g", "id": 11, "ts": 1.5},
      {"ph": "X", "cat": "kernel", "name": "k", "pid": 1, "tid": 7,
       "ts": 10.125, "dur": 2.5, "args": {"device": 1, "stream": 7,
       "correlation": 11, "External id": 4, "grid": [1, 2, 3],
       "Collective name": "allreduce"}},
      {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "pid": "1",
       "tid": "8", "ts": 20, "dur": 1, "args": {"bytes": 4,
       "correlation": 0}},
      {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#7",
       "ts": 0, "dur": 30},
      {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#7",
       "pid": 1, "tid": 7, "ts": 10, "dur": 11}
    ], "traceName": "x"})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->rank, 3);
  EXPECT_EQ(trace->world_size, 8);
  EXPECT_EQ(trace->device_names.at(1), "A GPU");
  ASSERT_EQ(trace->gpu_events.size(), 2);
  const GpuEvent& kernel = trace->gpu_events[0];
  EXPECT_EQ(kernel.time, (Interval{10'125, 12'625}));
  EXPECT_EQ(kernel.device, 1);
  EXPECT_EQ(kernel.stream, 7);
  EXPECT_EQ(kernel.correlation, 11);
  EXPECT_EQ(kernel.external_id, 4);
  EXPECT_EQ(trace->names[kernel.name_idx], "k");
  EXPECT_EQ(trace->names[kernel.collective_idx], "allreduce");
  const GpuEvent& copy = trace->gpu_events[1];
  EXPECT_EQ(copy.work, GpuWork::kCopy);
  EXPECT_EQ(copy.device, 1) << "from pid";
  EXPECT_EQ(copy.stream, 8) << "from tid";
  EXPECT_EQ(copy.correlation, kNoId) << "zero is nobody's";
  ASSERT_EQ(trace->calls.size(), 1) << "cudaGetDevice explains no gap";
  EXPECT_EQ(trace->calls[0].time, (Interval{1'500, 1'750}));
  EXPECT_EQ(trace->calls[0].thread, 6);
  ASSERT_EQ(trace->ops.size(), 1);
  EXPECT_EQ(trace->names[trace->ops[0].name_idx], "aten::mm");
  ASSERT_EQ(trace->steps.size(), 2);
  EXPECT_EQ(trace->steps[0].device, std::nullopt);
  EXPECT_EQ(trace->steps[1].device, 1);
  EXPECT_EQ(trace->steps[1].step, 7);
}

// Goal: times keep every nanosecond where a double would not (it holds a
// quarter of a microsecond at today's absolute times), and more digits round.
// Method: an absolute time, long fractions, exponents, a negative time.
TEST(TraceReaderTest, KeepsNanoseconds) {
  const auto read = [](const std::string& ts) {
    const absl::StatusOr<Trace> trace =
        ReadEvents(absl::StrCat(R"({"ph": "X", "cat": "kernel", "name": "k",)",
                                R"("dur": 0.001, "ts": )", ts, "}"));
    EXPECT_TRUE(trace.ok()) << trace.status();
    return trace.ok() && !trace->gpu_events.empty() ? trace->gpu_events[0].time
                                                    : Interval{};
  };
  EXPECT_EQ(read("1762000000123456.789"),
            (Interval{1762000000123456789, 1762000000123456790}));
  EXPECT_EQ(read("7").start_ns, 7'000);
  EXPECT_EQ(read("7.5").start_ns, 7'500);
  EXPECT_EQ(read("7.12345").start_ns, 7'123);
  EXPECT_EQ(read("7.9996").start_ns, 8'000);
  EXPECT_EQ(read("1.5e3").start_ns, 1'500'000);
  EXPECT_EQ(read("-1.25").start_ns, -1'250);
}

// Goal: GPU events without a usable time are counted and left out; unsorted
// ones are sorted. Method: each defect once.
TEST(TraceReaderTest, SkipsWhatHasNoTimeAndSorts) {
  const absl::StatusOr<Trace> trace = ReadEvents(R"(
      {"ph": "X", "cat": "kernel", "name": "late", "ts": 30, "dur": 1},
      {"ph": "X", "cat": "kernel", "name": "no dur", "ts": 1},
      {"ph": "X", "cat": "kernel", "name": "no ts", "dur": 1},
      {"ph": "X", "cat": "kernel", "name": "backwards", "ts": 1, "dur": -1},
      {"ph": "X", "cat": "kernel", "name": "never", "ts": 1e300, "dur": 1},
      {"ph": "X", "cat": "kernel", "name": "text", "ts": "soon", "dur": 1},
      {"ph": "X", "cat": "kernel", "name": "least", "ts": -9223372036854775808,
       "dur": 1},
      {"ph": "X", "cat": "kernel", "name": "early", "ts": -8999999999999999,
       "dur": 1},
      {"ph": "X", "cat": "kernel", "name": "long", "ts": 8999999999999999,
       "dur": 8999999999999999},
      {"ph": "X", "cat": "kernel", "ts": 10, "dur": 1})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->num_skipped, 8);
  ASSERT_EQ(trace->gpu_events.size(), 2);
  EXPECT_EQ(trace->names[trace->gpu_events[0].name_idx], "");
  EXPECT_EQ(trace->names[trace->gpu_events[1].name_idx], "late");
}

// Goal: the categories and keys of older PyTorch versions are understood.
// Method: one event of each.
TEST(TraceReaderTest, ReadsOlderNames) {
  const absl::StatusOr<Trace> trace = ReadEvents(R"(
      {"ph": "X", "cat": "Kernel", "name": "k", "ts": 1, "dur": 1,
       "args": {"external id": 3}},
      {"ph": "X", "cat": "Memcpy", "name": "c", "ts": 1, "dur": 1},
      {"ph": "X", "cat": "Memset", "name": "s", "ts": 1, "dur": 1},
      {"ph": "X", "cat": "Runtime", "name": "cudaLaunchKernel", "ts": 0,
       "dur": 1, "args": {"correlation": 2}},
      {"ph": "X", "cat": "Operator", "name": "ProfilerStep#2", "ts": 0,
       "dur": 9})");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->gpu_events.size(), 3);
  EXPECT_EQ(trace->gpu_events[0].external_id, 3);
  EXPECT_EQ(trace->calls.size(), 1);
  EXPECT_EQ(trace->steps.size(), 1);
}

// Goal: the bare list of events that Chrome's format allows is a trace, too.
// Method: one event, and a list within an event that is none.
TEST(TraceReaderTest, ReadsABareList) {
  const absl::StatusOr<Trace> trace = Read(R"([
      {"ph": "X", "cat": "kernel", "name": "k", "ts": 1, "dur": 2,
       "args": {"device": 1, "grid": [1, [{"ph": "X"}], 1]}}])");
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->num_events, 1);
  ASSERT_EQ(trace->gpu_events.size(), 1);
  EXPECT_EQ(trace->gpu_events[0].device, 1);
  EXPECT_EQ(Read("[{\"ph\": \"X\"},").status().code(),
            absl::StatusCode::kDataLoss);
}

// Goal: what is no trace is refused with its name and what to do. Method: each
// sort of wrong file.
TEST(TraceReaderTest, RefusesWhatIsNoTrace) {
  const auto error = [](const std::string& text) {
    return std::string(Read(text).status().message());
  };
  EXPECT_THAT(error(""), AllOf(HasSubstr("trace.json is empty"),
                               HasSubstr("torch.profiler")));
  EXPECT_THAT(error("hello"), AllOf(HasSubstr("not valid JSON at byte"),
                                    HasSubstr("torch.profiler")));
  EXPECT_THAT(error("{\"traceEvents\": [}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{\"traceEvents\": []} x"), HasSubstr("not valid JSON"));
  EXPECT_THAT(error("{\"events\": []}"), HasSubstr("no list \"traceEvents\""));
  EXPECT_THAT(error("[1, 2]"), HasSubstr("no list \"traceEvents\""));
  EXPECT_THAT(error("{\"a\": {\"traceEvents\": []}}"),
              HasSubstr("no list \"traceEvents\""));
  EXPECT_THAT(error("\x1f\x8b compressed"),
              HasSubstr("the gzip data are damaged"));
  EXPECT_TRUE(absl::IsNotFound(LoadTrace("no/such/file.json").status()));
  EXPECT_THAT(LoadTrace("tests/data").status().message(),
              HasSubstr("is a folder"));
}

std::string Packed(const std::string& text) {
  z_stream stream{};
  EXPECT_EQ(deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 15 + 16, 8,
                         Z_DEFAULT_STRATEGY),
            Z_OK);
  std::string packed(deflateBound(&stream, text.size()), '\0');
  std::string input = text;
  stream.next_in = reinterpret_cast<Bytef*>(input.data());
  stream.avail_in = static_cast<uInt>(input.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

// Goal: a trace cannot ask for more memory than it has events. Method: one text
// of 32 MiB, a key and a number of that size, packed to a thousandth; brackets
// a million deep; a pipe and an endless device.
TEST(TraceReaderTest, BoundsWhatOneValueTakes) {
  const std::string long_text(size_t{32} << 20, '1');
  for (const std::string& text :
       {absl::StrCat("[{\"name\": \"", long_text, "\"}]"),
        absl::StrCat("[{\"", long_text, "\": 1}]"),
        absl::StrCat("[{\"ts\": ", long_text, "}]")}) {
    const absl::Status status = Read(Packed(text)).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("a text or number of more than 16777216 bytes"));
  }
  const absl::Status deep = Read(std::string(1'000'000, '[')).status();
  EXPECT_THAT(std::string(deep.message()),
              HasSubstr("nested deeper than 64 levels"));
  const std::string pipe =
      absl::StrCat(::testing::TempDir(), "/trace_reader_test.pipe.", getpid());
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(LoadTrace(pipe).status().message()),
              HasSubstr("is a pipe"));
  unlink(pipe.c_str());
  EXPECT_THAT(std::string(LoadTrace("/dev/zero").status().message()),
              HasSubstr("is a device"));
}

// Goal: many values of which each is small are no reason to stop. Method: more
// bytes of short events than one value may take.
TEST(TraceReaderTest, ReadsLongTraces) {
  std::string events;
  for (int i = 0; i < 45'000; ++i) {
    absl::StrAppend(&events, i == 0 ? "" : ",", "{\"name\": \"",
                    std::string(500, 'a'), "\"}");
  }
  ASSERT_GT(events.size(), size_t{20} << 20);
  const absl::StatusOr<Trace> trace = ReadEvents(events);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->num_events, 45'000);
}

// Goal: a packed trace is read as the plain one is, in several parts too, and a
// cut or damaged one is refused. Method: the sample, packed, then cut at every
// 97th byte and changed at one.
TEST(TraceReaderTest, ReadsWhatGzipPacked) {
  std::ifstream file(kSampleTrace);
  const std::string whole((std::istreambuf_iterator<char>(file)),
                          std::istreambuf_iterator<char>());
  const absl::StatusOr<Trace> plain = Read(whole);
  ASSERT_TRUE(plain.ok()) << plain.status();
  const std::string packed = Packed(whole);
  ASSERT_LT(packed.size(), whole.size() / 4);
  const std::string parts =
      absl::StrCat(Packed(whole.substr(0, 5000)), Packed(whole.substr(5000)));
  for (const std::string& text : {packed, parts}) {
    const absl::StatusOr<Trace> trace = Read(text);
    ASSERT_TRUE(trace.ok()) << trace.status();
    EXPECT_EQ(trace->num_events, plain->num_events);
    EXPECT_EQ(trace->gpu_events.size(), plain->gpu_events.size());
    EXPECT_EQ(trace->names, plain->names);
  }
  for (size_t length = 1; length < packed.size(); length += 97) {
    const absl::Status status = Read(packed.substr(0, length)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << length << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr("the gzip data end early"));
  }
  std::string damaged = packed;
  damaged[packed.size() / 2] ^= 0x55;
  EXPECT_TRUE(absl::IsDataLoss(Read(damaged).status()))
      << Read(damaged).status();
}

// Goal: a file cut anywhere is refused as cut, not read as a shorter trace.
// Method: the sample, cut at every 997th byte.
TEST(TraceReaderTest, RefusesEveryCutOfTheSample) {
  std::ifstream file(kSampleTrace);
  const std::string whole((std::istreambuf_iterator<char>(file)),
                          std::istreambuf_iterator<char>());
  ASSERT_GT(whole.size(), 10'000);
  ASSERT_TRUE(Read(whole).ok());
  for (size_t length = 1; length < whole.size() - 2; length += 997) {
    const absl::Status status = Read(whole.substr(0, length)).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << length << ": " << status;
    EXPECT_THAT(status.message(), HasSubstr("cut short")) << length;
  }
}

}  // namespace
}  // namespace millrace
