// Text for tests, made from a seed: code-like lines with more words than any
// tokenizer of a test needs.

#ifndef MILLRACE_TESTS_WORKER_DATA_SAMPLE_TEXT_H_
#define MILLRACE_TESTS_WORKER_DATA_SAMPLE_TEXT_H_

#include <cstdint>
#include <random>
#include <string>

namespace millrace {

inline std::string SampleLines(uint64_t seed, int num_lines) {
  std::mt19937_64 random(seed);
  std::string text;
  for (int line = 0; line < num_lines; ++line) {
    text.append(2 * (random() % 4), ' ');
    const int num_words = 1 + static_cast<int>(random() % 8);
    for (int word = 0; word < num_words; ++word) {
      const int num_letters = 1 + static_cast<int>(random() % 6);
      for (int letter = 0; letter < num_letters; ++letter) {
        text += static_cast<char>('a' + random() % 12);
      }
      text += word + 1 < num_words ? " " : ";\n";
    }
  }
  return text;
}

}  // namespace millrace

#endif  // MILLRACE_TESTS_WORKER_DATA_SAMPLE_TEXT_H_
