/* libmillrace_kernels.so, whole: Millrace's GPU kernels for programs in other
   languages. docs/kernels.md shows how to call them. */

#ifndef MILLRACE_KERNELS_C_API_MILLRACE_KERNELS_H_
#define MILLRACE_KERNELS_C_API_MILLRACE_KERNELS_H_

#include "kernels/c_api/adamw.h"
#include "kernels/c_api/attention.h"
#include "kernels/c_api/attention_fp8.h"
#include "kernels/c_api/attention_portable.h"
#include "kernels/c_api/cast.h"
#include "kernels/c_api/cross_entropy.h"
#include "kernels/c_api/elementwise.h"
#include "kernels/c_api/embedding.h"
#include "kernels/c_api/gelu.h"
#include "kernels/c_api/gemm.h"
#include "kernels/c_api/gemm_fp8.h"
#include "kernels/c_api/layernorm.h"
#include "kernels/c_api/random_normal.h"
#include "kernels/c_api/rmsnorm.h"
#include "kernels/c_api/rope.h"
#include "kernels/c_api/status.h"
#include "kernels/c_api/swiglu.h"
#include "kernels/c_api/tuning.h"

#endif /* MILLRACE_KERNELS_C_API_MILLRACE_KERNELS_H_ */
