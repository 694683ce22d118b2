// Writes checkpoints as torch.distributed.checkpoint lays them out, from
// PyTorch's public description and without PyTorch, so that tests can also
// write such as lie.

#ifndef MILLRACE_TESTS_FAULT_TORCH_FILES_H_
#define MILLRACE_TESTS_FAULT_TORCH_FILES_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "fault/element_type.h"
#include "fault/file_system.h"
#include "planner/layout/model.h"
#include "planner/program/parameters.h"

namespace millrace {

// Pickled values.
std::string PickledInt(int64_t value);
std::string PickledText(const std::string& text);
std::string PickledGlobal(const std::string& module, const std::string& name);
std::string PickledTuple(const std::vector<std::string>& items);
std::string PickledList(const std::vector<std::string>& items);
// Keys and values, pickled.
std::string PickledMap(
    const std::vector<std::pair<std::string, std::string>>& items);
std::string PickledSize(const std::vector<int64_t>& dims);
// With a map as its state.
std::string PickledObject(
    const std::string& module, const std::string& name,
    const std::vector<std::pair<std::string, std::string>>& state);
// A whole file.
std::string PickleFile(const std::string& value);

// An archive of stored members.
std::string StoredZip(
    const std::vector<std::pair<std::string, std::string>>& members);

struct TorchBox {
  std::vector<int64_t> offsets;
  std::vector<int64_t> sizes;
};
struct TorchTestTensor {
  std::string name;
  ElementType type = ElementType::kBf16;
  std::vector<int64_t> shape;
  std::string bytes;  // All elements, row by row.
  std::vector<TorchBox> boxes;
};
// Cuts a shape into a grid: parts of as equal size as can be along each dim,
// the first ones larger.
std::vector<TorchBox> GridOf(const std::vector<int64_t>& shape,
                             const std::vector<int64_t>& parts);

// The archive that torch.save writes of a part.
std::string TorchArchive(ElementType type, const std::vector<int64_t>& sizes,
                         const std::string& bytes);

// Writes .metadata and a file for each of `num_ranks`, which hold the tensors'
// boxes in turn.
void WriteTorchCheckpoint(FileSystem& files, const std::string& folder,
                          const std::vector<TorchTestTensor>& tensors,
                          int num_ranks);

// A small model with grouped heads, so that a group has two queries, one key
// and one value; its parameters hold ElementValue()s.
ModelSpec GroupedModel();
std::vector<int64_t> DimsOf(const Parameter& parameter);
// Elements of row `row` of a parameter; of a vector, one element.
std::string RowOf(ElementType type, const Parameter& parameter, int64_t row);
std::string AllOfIt(ElementType type, const Parameter& parameter);
// All parameters under Hugging Face's names, or as `rename` has them.
std::vector<TorchTestTensor> HuggingFaceTensors(
    const ModelSpec& model, ElementType type, const std::vector<int64_t>& parts,
    const std::function<std::string(const std::string&)>& rename = nullptr);

// The message with which the checkpoint is refused, or "no error".
std::string ImportError(FileSystem& files, const std::string& source,
                        const ModelSpec& model);

void WriteTestFile(FileSystem& files, const std::string& path,
                   const std::string& content);

}  // namespace millrace

#endif  // MILLRACE_TESTS_FAULT_TORCH_FILES_H_
