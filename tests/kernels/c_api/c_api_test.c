/* Goal: the header is C, the library loads without a GPU, exports what the
   header declares, and says why it refuses. Method: a C program that links
   against it; the build checks each declared name (c_api_names_test). */

#include <stdio.h>
#include <string.h>

#include "kernels/c_api/millrace_kernels.h"

static int failures = 0;

static void Expect(int holds, const char* what) {
  if (holds) return;
  ++failures;
  fprintf(stderr, "failed: %s; last error: %s\n", what, millrace_last_error());
}

int main(void) {
  Expect(millrace_kernels_abi_version() == MILLRACE_KERNELS_ABI_VERSION,
         "the library is of the header's version");

  Expect(millrace_install_tuning(NULL) == 0, "no tuning is always possible");

  millrace_rmsnorm_forward_args norm;
  memset(&norm, 0, sizeof(norm));
  norm.num_tokens = 1;
  norm.hidden = 12; /* Not a multiple of 8. */
  norm.epsilon = 1e-5;
  Expect(millrace_rmsnorm_forward_bf16(&norm, NULL) == 3,
         "hidden 12 is an invalid argument");
  Expect(strstr(millrace_last_error(), "12") != NULL,
         "the error names the size");

  millrace_attention_forward_args attention;
  memset(&attention, 0, sizeof(attention));
  attention.shape.num_sequences = 1;
  attention.shape.sequence_length = 1;
  attention.shape.num_heads = 3;
  attention.shape.num_kv_heads = 2;
  attention.shape.head_dim = 128;
  Expect(millrace_attention_forward_bf16(&attention, NULL) == 3,
         "3 heads over 2 is an invalid argument");
  Expect(strstr(millrace_last_error(), "3 query heads") != NULL,
         "the error names the heads");

  /* Refusals that need no device, one of each family that makes plans or
     draws. */
  millrace_gemm_fp8_shape fp8;
  memset(&fp8, 0, sizeof(fp8));
  fp8.m = fp8.n = 16;
  fp8.k = 24;
  millrace_gemm_options options;
  memset(&options, 0, sizeof(options));
  millrace_gemm_fp8_plan* plan = (millrace_gemm_fp8_plan*)&fp8;
  Expect(millrace_gemm_fp8_plan_create(&fp8, &options, &plan) == 3,
         "k 24 is an invalid argument");
  Expect(plan == NULL, "a refused plan is null");
  Expect(strstr(millrace_last_error(), "24") != NULL, "the error names k");
  millrace_gemm_fp8_plan_destroy(plan);

  millrace_add_args add;
  memset(&add, 0, sizeof(add));
  add.num_elements = -1;
  Expect(millrace_add_bf16(&add, NULL) == 3, "-1 elements cannot be");
  Expect(strstr(millrace_last_error(), "-1") != NULL,
         "the error names the number");

  millrace_fill_normal_args fill;
  memset(&fill, 0, sizeof(fill));
  fill.end = 5;
  fill.begin = 7;
  Expect(millrace_fill_normal(&fill, NULL) == 3, "a run cannot end before 7");
  Expect(strstr(millrace_last_error(), "7") != NULL, "the error names the run");
  return failures != 0;
}
