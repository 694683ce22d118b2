// Unpacks gzip while it is read, so that a packed trace is never held in memory
// as a whole.

#ifndef MILLRACE_PLANNER_DIAGNOSE_GUNZIP_H_
#define MILLRACE_PLANNER_DIAGNOSE_GUNZIP_H_

#include <istream>
#include <memory>
#include <streambuf>
#include <string>

namespace millrace {

// Provides the unpacked text of a gzip stream (RFC 1952), also of several
// members; read it through an istream. It ends early where the stream is
// damaged or cut; error() then says so.
class GunzipBuffer : public std::streambuf {
 public:
  explicit GunzipBuffer(std::istream& packed);  // Borrowed.
  ~GunzipBuffer() override;

  // Empty if there was no error.
  const std::string& error() const { return error_; }

 protected:
  int_type underflow() override;

 private:
  struct State;  // State of the library.

  const std::unique_ptr<State> state_;
  std::string error_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_GUNZIP_H_
