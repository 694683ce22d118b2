// Writes what a job's training starts from and reads, for peers that train the
// same: see pytorch_llama_gpu.py.
//
//   training_inputs JOB.yaml FOLDER
//
// FOLDER/initial.safetensors  parameters before the first step, fp32, global
//                             shapes, names of Hugging Face
// FOLDER/batches.i32          for each step tokens, targets, document_starts
//                             (OpKind::kLoadBatch), each [global_batch,
//                             sequence_length], int32

#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/files.h"
#include "base/status_macros.h"
#include "fault/file_system.h"
#include "fault/safetensors.h"
#include "planner/job/job_file.h"
#include "planner/program/parameters.h"
#include "worker/data/open_batches.h"
#include "worker/measure/machine.h"
#include "worker/train/initialize.h"

namespace millrace {
namespace {

absl::Status WriteParameters(const JobSpec& job, const std::string& path) {
  const Layout one_rank;
  const StageParameters parameters =
      BuildStageParameters(job.model, one_rank, /*stage=*/0);
  std::vector<float> flat(static_cast<size_t>(parameters.num_elements));
  InitializeParameters(job.model, one_rank, {}, parameters, job.training.seed,
                       flat.data());
  std::vector<SafetensorsTensor> tensors;
  for (const ParameterSlot& slot : parameters.slots) {
    const Parameter& p = slot.parameter;
    std::vector<int64_t> shape = {p.rows, p.cols};
    if (p.is_vector) shape = {p.cols};
    tensors.push_back({.name = p.name, .shape = std::move(shape)});
  }
  ASSIGN_OR_RETURN(SafetensorsWriter writer,
                   SafetensorsWriter::Create(*PosixFileSystem(), path,
                                             std::move(tensors), {}));
  for (const ParameterSlot& slot : parameters.slots) {
    RETURN_IF_ERROR(writer.Append(flat.data() + slot.offset,
                                  slot.parameter.rows * slot.parameter.cols));
  }
  return writer.Finish();
}

absl::Status WriteBatches(const JobSpec& job, const std::string& path) {
  ASSIGN_OR_RETURN(const Machine machine, DescribeMachine());
  ASSIGN_OR_RETURN(const std::unique_ptr<BatchSource> batches,
                   PrepareAndOpenBatches(job, machine.num_cores));
  const int64_t global_batch = job.training.global_batch;
  const int64_t size = global_batch * job.model.sequence_length;
  std::vector<int32_t> batch(static_cast<size_t>(3 * size));
  std::ofstream file(path, std::ios::binary);
  for (int64_t step = 1; step <= job.training.num_steps; ++step) {
    RETURN_IF_ERROR(batches->Fill(
        {DataSplit::kTraining, step, global_batch, 0, global_batch},
        {batch.data(), batch.data() + size, batch.data() + 2 * size}));
    file.write(reinterpret_cast<const char*>(batch.data()),
               static_cast<std::streamsize>(batch.size() * sizeof(int32_t)));
  }
  if (file.flush()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrCat("cannot write ", path, "; is the disk full?"));
}

absl::Status WriteInputs(const std::string& job_path,
                         const std::string& folder) {
  ASSIGN_OR_RETURN(const JobSpec job, LoadJob(job_path));
  RETURN_IF_ERROR(MakeDirectories(folder));
  RETURN_IF_ERROR(WriteParameters(job, folder + "/initial.safetensors"));
  return WriteBatches(job, folder + "/batches.i32");
}

}  // namespace
}  // namespace millrace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: training_inputs JOB.yaml FOLDER\n";
    return 2;
  }
  const absl::Status status = millrace::WriteInputs(argv[1], argv[2]);
  if (!status.ok()) {
    std::cerr << "training_inputs: " << status.message() << "\n";
  }
  return status.ok() ? 0 : 1;
}
