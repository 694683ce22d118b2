/* libmillrace_train.so: training as Millrace does it, for programs in other
   languages. python/millrace is written on it.

   A trainer is one rank: it plans the job for all ranks, makes the rank's
   Program and memory, and runs one step after the other. Every rank is a
   process that makes the same calls in the same order. One trainer is used by
   one thread at a time.

   Functions return 0, or the code of an absl::Status (3 for input that cannot
   be, 5 for something missing, 9 for a state that forbids the call, 14 for a
   device or a peer that is gone) and leave the reason in
   millrace_trainer_last_error(). */

#ifndef MILLRACE_PYTHON_NATIVE_TRAINER_H_
#define MILLRACE_PYTHON_NATIVE_TRAINER_H_

#include <stdint.h>

#define MILLRACE_TRAIN_API __attribute__((visibility("default")))

#ifdef __cplusplus
extern "C" {
#endif

/* Rises when a struct or a meaning changes; new functions leave it. */
#define MILLRACE_TRAIN_ABI_VERSION 1
MILLRACE_TRAIN_API int32_t millrace_train_abi_version(void);

/* The last failure of the calling thread, or "". Valid until its next call. */
MILLRACE_TRAIN_API const char* millrace_trainer_last_error(void);

typedef struct millrace_trainer millrace_trainer;

typedef struct {
  const char* job_file;
  int32_t rank;
  int32_t num_ranks;
  /* Among the ranks of this host. Each takes the GPU of its index, or its share
     of the cores. */
  int32_t local_rank;
  int32_t num_local_ranks;
  /* A folder that all ranks see and that is empty when the first one starts.
     Null with one rank. */
  const char* rendezvous_folder;
  /* This host's address as the other ranks reach it, for ranks on CPUs. Null:
     127.0.0.1. */
  const char* host_address;
} millrace_trainer_options;

/* Reads the job, plans it (and measures this machine first where the job's
   profile is auto and none is kept), and prepares the rank: weights come from
   model.from or from the job's seed. Collective. */
MILLRACE_TRAIN_API int32_t millrace_trainer_open(
    const millrace_trainer_options* options, millrace_trainer** trainer);
/* Null does nothing. */
MILLRACE_TRAIN_API void millrace_trainer_close(millrace_trainer* trainer);

typedef struct {
  int64_t global_batch;    /* Sequences of a step, over all ranks. */
  int64_t sequence_length; /* Tokens of a sequence. */
  int64_t vocab_size;
  int64_t num_steps; /* The job's. */
  int64_t completed_steps;
  int64_t arena_bytes; /* This rank's. */
  int32_t is_cuda;
  int32_t device_idx;
  double predicted_step_s;
  /* Text; valid while the trainer is. */
  const char* layout;
  const char* warnings; /* The plan's and the host's, a line each. */
} millrace_trainer_info;
MILLRACE_TRAIN_API int32_t millrace_trainer_get_info(
    millrace_trainer* trainer, millrace_trainer_info* info);

/* Each [global_batch, sequence_length], row-major, on the host, and the same on
   every rank; read before the call returns. */
typedef struct {
  const int32_t* tokens;
  const int32_t* targets; /* The token to predict at each position; -1: none. */
  /* For each token the index in its sequence of the first token of its
     document. Null: a sequence is one document. */
  const int32_t* document_starts;
} millrace_batch;

typedef struct {
  int64_t step; /* The first is 1; 0: no result yet. */
  double loss;  /* Mean over the trained tokens, nats. */
  double gradient_norm;
  double learning_rate;
  double step_time_s;
  int32_t finite; /* 0: loss or gradient is not a number. */
} millrace_step_result;

/* Runs the next step on `batch`, or on the job's own data where it is null.
   With `wait` the result is this step's; without, a GPU works on while the call
   returns the result of the step before. Collective. */
MILLRACE_TRAIN_API int32_t millrace_trainer_step(millrace_trainer* trainer,
                                                 const millrace_batch* batch,
                                                 int32_t wait,
                                                 millrace_step_result* result);

/* Mean validation loss over `num_batches` batches of the job's data.
   Collective. */
MILLRACE_TRAIN_API int32_t millrace_trainer_validate(millrace_trainer* trainer,
                                                     int64_t num_batches,
                                                     double* loss);

/* A run of elements of one tensor, where it lies in the rank's device memory.
   The tensor's global shape is [rows, cols], or [cols] for a vector. The rank's
   box of it is stored row-major, and `data` points at element `begin` of the
   box, the first of `end - begin`. fp32. */
typedef struct {
  const char* name; /* "lm_head.weight"; a moment's ends in ".exp_avg(_sq)". */
  int64_t rows;
  int64_t cols;
  int64_t row_begin;
  int64_t row_end;
  int64_t col_begin;
  int64_t col_end;
  int64_t begin;
  int64_t end;
  float* data;
  int32_t is_vector;
} millrace_state_piece;

/* Parameters and moments of this rank, without copies; moments that are not
   stored in fp32 are left out. Waits for all steps that were started. `pieces`
   is valid until the next call of this function, the memory as long as the
   trainer; steps change it. */
MILLRACE_TRAIN_API int32_t
millrace_trainer_get_state(millrace_trainer* trainer,
                           const millrace_state_piece** pieces, int64_t* count);
/* To call after changing the state, before the next step. Collective. */
MILLRACE_TRAIN_API int32_t
millrace_trainer_take_changes(millrace_trainer* trainer);

/* Writes a checkpoint into DIRECTORY/step-N, as `millrace run` does, and keeps
   the newest `keep` there. Its files are the user's alone: the umask of the
   process is 077 while it writes. Collective. */
MILLRACE_TRAIN_API int32_t millrace_trainer_save(millrace_trainer* trainer,
                                                 const char* directory,
                                                 int32_t keep);
/* Goes on from a checkpoint: a folder step-N, written under any layout.
   Collective. */
MILLRACE_TRAIN_API int32_t millrace_trainer_load(millrace_trainer* trainer,
                                                 const char* path);

#ifdef __cplusplus
}
#endif

#endif /* MILLRACE_PYTHON_NATIVE_TRAINER_H_ */
