#include "worker/agent/data_offer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "base/files.h"
#include "tests/coordinator/files/file_serving.h"

namespace millrace {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kOfferSecret[] = "0123456789abcdef";

class DataOfferTest : public ::testing::Test {
 protected:
  // Two sources, one with a file of several pieces, and an evaluation set.
  DataOfferTest() : folder_(::testing::TempDir() + "/data_offer_test") {
    fs::remove_all(folder_);
    fs::create_directories(folder_ + "/source");
    data_.training.sources = {
        {.key = "data.sources[0]",
         .name = "a",
         .weight = 2,
         .prefixes = {Write("a", 3 * kMaxFilePieceBytes + 5)},
         .num_tokens = 7,
         .num_documents = 2},
        {.key = "data.sources[1]",
         .name = "b",
         .weight = 1,
         .prefixes = {Write("b", 10), Write("c", 0)}}};
    data_.training.num_tokens = 17;
    data_.training.fingerprint = 4711;
    data_.evaluation = {{.name = "held", .prefixes = {Write("d", 4)}}};
    data_.document_length = 9;
    const auto offer = OfferOf(data_);
    EXPECT_TRUE(offer.ok()) << offer.status();
    data_.offer = *offer;
    Serve(FreePort());
  }

  void Serve(int32_t port) {
    server_ = ServeFilesAt(port, kOfferSecret);
    ServeData(data_, server_.get());
  }

  std::string Write(const std::string& name, int64_t num_bytes) const {
    const std::string prefix = folder_ + "/source/" + name;
    // Repeats after a prime number of bytes, so no two pieces are alike.
    std::string period(65521, '\0');
    for (size_t i = 0; i < period.size(); ++i) {
      period[i] = static_cast<char>(i * 7 + i / 251);
    }
    std::string content;
    while (static_cast<int64_t>(content.size()) < num_bytes) content += period;
    content.resize(static_cast<size_t>(num_bytes));
    std::ofstream(prefix + ".bin", std::ios::binary) << content;
    std::ofstream(prefix + ".idx", std::ios::binary) << name;
    if (name == "b") {
      std::ofstream(prefix + ".trained.bin", std::ios::binary) << "marks";
      std::ofstream(prefix + ".trained.idx", std::ios::binary) << "index";
    }
    return prefix;
  }

  DataFetch Fetch() const {
    DataFetch fetch = {.secret = kOfferSecret,
                       .cache_directory = folder_ + "/cache"};
    *fetch.order.mutable_offer() = *data_.offer;
    protocol::FileHost* from = fetch.order.add_from();
    from->set_host("node1");
    from->set_address("127.0.0.1");
    from->set_port(server_->port());
    return fetch;
  }

  static std::string Content(const std::string& path) {
    const auto content = ReadFile(path);
    EXPECT_TRUE(content.ok()) << content.status();
    return content.value_or("");
  }

  void ExpectSame(const absl::StatusOr<PreparedJobData>& fetched) const {
    ASSERT_TRUE(fetched.ok()) << fetched.status();
    ASSERT_EQ(fetched->training.sources.size(), 2U);
    EXPECT_EQ(fetched->training.sources[0].weight, 2);
    EXPECT_EQ(fetched->training.sources[0].num_tokens, 7);
    EXPECT_EQ(fetched->training.fingerprint, 4711U);
    EXPECT_EQ(fetched->document_length, 9);
    ASSERT_EQ(fetched->evaluation.size(), 1U);
    const auto same = [](const std::string& a, const std::string& b) {
      for (const char* suffix : {".bin", ".idx"}) {
        EXPECT_EQ(Content(a + suffix), Content(b + suffix));
      }
    };
    for (size_t i = 0; i < 2; ++i) {
      const auto& source = data_.training.sources[i];
      ASSERT_EQ(fetched->training.sources[i].prefixes.size(),
                source.prefixes.size());
      for (size_t j = 0; j < source.prefixes.size(); ++j) {
        same(source.prefixes[j], fetched->training.sources[i].prefixes[j]);
      }
    }
    same(data_.evaluation[0].prefixes[0], fetched->evaluation[0].prefixes[0]);
    EXPECT_EQ(
        Content(fetched->training.sources[1].prefixes[0] + ".trained.bin"),
        "marks");
  }

  const std::string folder_;
  PreparedJobData data_;
  std::unique_ptr<FileServer> server_;
};

// Goal: every token file arrives as it is, marks of chat and evaluation sets
// too, and once. Method: compare all bytes; fetch again without a source.
TEST_F(DataOfferTest, FetchesAllFilesOnce) {
  ExpectSame(FetchData(Fetch()));
  const DataFetch again = Fetch();
  server_.reset();
  ExpectSame(FetchData(again));
}

// Goal: a connection that breaks costs nothing that has arrived. Method: end
// the server after the first piece and start it again a little later; then end
// it for good, with a second host that has the data.
TEST_F(DataOfferTest, GoesOnAfterABrokenConnection) {
  DataFetch fetch = Fetch();
  std::thread again;
  fetch.progress = [&](int64_t done, int64_t total) {
    EXPECT_LE(done, total);
    if (again.joinable()) return;
    const int32_t port = server_->port();
    server_.reset();
    again = std::thread([this, port] {
      absl::SleepFor(absl::Milliseconds(300));
      Serve(port);
    });
  };
  ExpectSame(FetchData(fetch));
  ASSERT_TRUE(again.joinable());
  again.join();

  fs::remove_all(folder_ + "/cache");
  fetch = Fetch();
  const auto other = ServeFilesAt(FreePort(), kOfferSecret);
  ServeData(data_, other.get());
  *fetch.order.add_from() = fetch.order.from(0);
  fetch.order.mutable_from(1)->set_port(other->port());
  fetch.progress = [&](int64_t, int64_t) { server_.reset(); };
  ExpectSame(FetchData(fetch));
}

// Goal: files that are not what was offered are refused and not kept. Method:
// change one at its source, and then a piece that an earlier call left.
TEST_F(DataOfferTest, RefusesOtherContent) {
  std::ofstream(folder_ + "/source/b.bin", std::ios::binary) << "0123456789";
  const absl::Status changed = FetchData(Fetch()).status();
  EXPECT_TRUE(absl::IsDataLoss(changed)) << changed;
  EXPECT_THAT(std::string(changed.message()), HasSubstr("came with finger"));
  Write("b", 10);
  ExpectSame(FetchData(Fetch()));
}

}  // namespace
}  // namespace millrace
