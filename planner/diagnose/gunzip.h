// Unpacks gzip while it is read, so that a packed trace is never held whole.

#ifndef MILLRACE_PLANNER_DIAGNOSE_GUNZIP_H_
#define MILLRACE_PLANNER_DIAGNOSE_GUNZIP_H_

#include <istream>
#include <memory>
#include <streambuf>
#include <string>

namespace millrace {

// The unpacked text of a stream of gzip (RFC 1952), of several parts too; read
// it through an istream. Ends early at what is damaged or cut: error() says so.
class GunzipBuffer : public std::streambuf {
 public:
  explicit GunzipBuffer(std::istream& packed);  // Borrowed.
  ~GunzipBuffer() override;

  // Empty while all is well.
  const std::string& error() const { return error_; }

 protected:
  int_type underflow() override;

 private:
  struct State;  // Of the library.

  const std::unique_ptr<State> state_;
  std::string error_;
};

}  // namespace millrace

#endif  // MILLRACE_PLANNER_DIAGNOSE_GUNZIP_H_
