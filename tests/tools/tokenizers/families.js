// The tokenizer.json of seven kinds, as the model families in their names set
// them up, with pieces and merges that were trained here.
'use strict';

const CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";
const REST = '\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+';
const UPPER = '[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]';
const LOWER = '[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]';
const PATTERNS = {
  llama3: `${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${REST}`,
  qwen2: `${CONTRACTIONS}|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|${REST}`,
  phi4: `[^\\r\\n\\p{L}\\p{N}]?${UPPER}*${LOWER}+${CONTRACTIONS}?|[^\\r\\n\\p{L}\\p{N}]?${UPPER}+${LOWER}*${CONTRACTIONS}?|\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|${REST}`,
};
const SPACE = '\u2581';

const byteLevel = (useRegex) => ({
  type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: useRegex});
const splitBy = (regex) => ({
  type: 'Split', pattern: {Regex: regex}, behavior: 'Isolated', invert: false});
const replace = (from, to) => ({type: 'Replace', pattern: {String: from}, content: to});
const beginWith = (token, id) => ({
  type: 'TemplateProcessing',
  single: [{SpecialToken: {id: token, type_id: 0}}, {Sequence: {id: 'A', type_id: 0}}],
  pair: [{Sequence: {id: 'A', type_id: 0}}, {Sequence: {id: 'B', type_id: 1}}],
  special_tokens: {[token]: {id: token, ids: [id], tokens: [token]}}});
const added = (id, content, flags) => ({
  id, content, single_word: false, lstrip: false, rstrip: false, normalized: false,
  special: true, ...flags});
const LLAMA_DECODER = {type: 'Sequence', decoders: [
  replace(SPACE, ' '), {type: 'ByteFallback'}, {type: 'Fuse'},
  {type: 'Strip', content: ' ', start: 1, stop: 0}]};
const GEMMA_DECODER = {type: 'Sequence', decoders: [
  replace(SPACE, ' '), {type: 'ByteFallback'}, {type: 'Fuse'}]};

// Named tokens behind the pieces of the model.
function behind(pieces, names, flags) {
  return names.map((name, i) => added(pieces.length + i, name, (flags || {})[name]));
}

// `pieces`: texts whose index is their id. `merges`: pairs of texts.
function file(pieces, merges, parts, model) {
  return {
    version: '1.0', truncation: null, padding: null, added_tokens: parts.added_tokens,
    normalizer: parts.normalizer || null, pre_tokenizer: parts.pre_tokenizer || null,
    post_processor: parts.post_processor || null, decoder: parts.decoder,
    model: {
      type: 'BPE', dropout: null, unk_token: null, continuing_subword_prefix: null,
      end_of_word_suffix: null, fuse_unk: false, byte_fallback: false, ignore_merges: false,
      ...model,
      vocab: Object.fromEntries(pieces.map((piece, id) => [piece, id])), merges}};
}

// size: pieces of the real vocabularies. kind: of the training.
const FAMILIES = {
  gpt2: {size: 50257, kind: 'byte', make: (pieces, merges) => {
    const all = [...pieces, '<|endoftext|>'];
    return file(all, merges.map((pair) => pair.join(' ')), {
      added_tokens: [added(all.length - 1, '<|endoftext|>', {normalized: true})],
      pre_tokenizer: byteLevel(true),
      post_processor: {...byteLevel(true), trim_offsets: false}, decoder: byteLevel(true)},
    {unk_token: '<|endoftext|>', continuing_subword_prefix: '', end_of_word_suffix: ''});
  }},
  llama3: {size: 128000, kind: 'byte', make: (pieces, merges) => file(pieces, merges, {
    added_tokens: behind(pieces, ['<|begin_of_text|>', '<|end_of_text|>',
      ...Array.from({length: 254}, (_, i) => `<|reserved_special_token_${i}|>`)]),
    pre_tokenizer: {type: 'Sequence',
      pretokenizers: [splitBy(PATTERNS.llama3), byteLevel(false)]},
    post_processor: {type: 'Sequence', processors: [
      {...byteLevel(true), trim_offsets: false}, beginWith('<|begin_of_text|>', pieces.length)]},
    decoder: byteLevel(true)}, {ignore_merges: true})},
  qwen2: {size: 151643, kind: 'byte', make: (pieces, merges) => file(pieces, merges, {
    added_tokens: behind(pieces, ['<|endoftext|>', '<|im_start|>', '<|im_end|>', '<tool_call>'],
      {'<tool_call>': {special: false}}),
    normalizer: {type: 'NFC'},
    pre_tokenizer: {type: 'Sequence',
      pretokenizers: [splitBy(PATTERNS.qwen2), byteLevel(false)]},
    post_processor: {...byteLevel(false), trim_offsets: false}, decoder: byteLevel(false)})},
  phi4: {size: 100256, kind: 'byte', make: (pieces, merges) => file(pieces, merges, {
    added_tokens: behind(pieces, ['<|endoftext|>', '<|im_start|>', '<|im_sep|>', '<|im_end|>'],
      Object.fromEntries(['<|endoftext|>', '<|im_start|>', '<|im_sep|>', '<|im_end|>'].map(
        (name) => [name, {lstrip: true, rstrip: true}]))),
    pre_tokenizer: {type: 'Sequence',
      pretokenizers: [splitBy(PATTERNS.phi4), byteLevel(false)]},
    post_processor: {...byteLevel(true), trim_offsets: false}, decoder: byteLevel(true)})},
  llama2: {size: 32000, kind: 'space', make: (pieces, merges) => file(pieces, merges, {
    added_tokens: [added(0, '<unk>'), added(1, '<s>'), added(2, '</s>')],
    normalizer: {type: 'Sequence', normalizers: [
      {type: 'Prepend', prepend: SPACE}, replace(' ', SPACE)]},
    post_processor: beginWith('<s>', 1), decoder: LLAMA_DECODER},
  {unk_token: '<unk>', fuse_unk: true, byte_fallback: true})},
  gemma: {size: 256000, kind: 'space', make: (pieces, merges) => file(pieces, merges, {
    added_tokens: [added(0, '<unk>'), added(1, '<s>'), added(2, '</s>'),
      ...behind(pieces, ['<start_of_turn>', '\n\n', '\n\n\n', SPACE + SPACE, 'yesterday'], {
        '\n\n': {special: false}, '\n\n\n': {special: false},
        [SPACE + SPACE]: {special: false},
        yesterday: {special: false, normalized: true, single_word: true}})
        .filter((token) => !pieces.includes(token.content))
        .map((token, i) => ({...token, id: pieces.length + i}))],
    normalizer: replace(' ', SPACE),
    pre_tokenizer: {type: 'Split', pattern: {String: ' '}, behavior: 'MergedWithPrevious',
      invert: false},
    post_processor: beginWith('<s>', 1), decoder: GEMMA_DECODER},
  {unk_token: '<unk>', fuse_unk: true, byte_fallback: true})},
  phi3: {size: 32000, kind: 'space', make: (pieces, merges) => file(pieces, merges, {
    added_tokens: [added(0, '<unk>'), added(1, '<s>'), added(2, '</s>', {rstrip: true}),
      ...behind(pieces, ['<|endoftext|>', '<|assistant|>', '<|user|>'], {
        '<|assistant|>': {rstrip: true}, '<|user|>': {rstrip: true, lstrip: true}})],
    pre_tokenizer: {type: 'Metaspace', replacement: SPACE, prepend_scheme: 'first', split: false},
    post_processor: beginWith('<s>', 1), decoder: LLAMA_DECODER},
  {unk_token: '<unk>', fuse_unk: true, byte_fallback: true})},
};

module.exports = {FAMILIES, SPACE};
