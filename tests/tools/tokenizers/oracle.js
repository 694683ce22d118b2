// Drives Hugging Face's `tokenizers` (the npm package of that name, which is
// their Rust library) for scripts/check_tokenizers.
//
//   node oracle.js vocabularies SAMPLE DIR [SIZE]  trains DIR/FAMILY.json on a text
//   node oracle.js ids TOKENIZER CORPUS IDS        encodes documents, prints its speed
//   node oracle.js cases TOKENIZER TEXTS CASES     ids and decoded texts of a JSON list
//
// CORPUS is a row of documents, IDS one of id lists, each behind its length
// (u32, little-endian).
'use strict';

const fs = require('fs');
const path = require('path');
const {FAMILIES, SPACE} = require('./families.js');
const {Tokenizer} = require(require.resolve('tokenizers', {paths: [process.cwd()]}));

function empty(preTokenizer) {
  return Tokenizer.fromString(JSON.stringify({
    version: '1.0', truncation: null, padding: null, added_tokens: [], normalizer: null,
    pre_tokenizer: preTokenizer, post_processor: null, decoder: null,
    model: {type: 'BPE', vocab: {}, merges: []}}));
}

const TRAINING = {
  byte: {type: 'ByteLevel', add_prefix_space: false, trim_offsets: true, use_regex: true},
  space: {type: 'Sequence', pretokenizers: [
    {type: 'Metaspace', replacement: SPACE, prepend_scheme: 'always', split: true},
    {type: 'Split', pattern: {Regex: '\\n+'}, behavior: 'Isolated', invert: false}]},
};

// The trainer makes 30,000 pieces. Larger vocabularies get merges that build
// the most frequent words which are not one piece yet.
function train(kind, sample) {
  const tokenizer = empty(TRAINING[kind]);
  tokenizer.train([sample]);
  const json = path.join(fs.mkdtempSync('/tmp/oracle-'), 'trained.json');
  tokenizer.save(json);
  const trained = JSON.parse(fs.readFileSync(json));
  fs.rmSync(path.dirname(json), {recursive: true});
  const pieces = Object.entries(trained.model.vocab).sort((a, b) => a[1] - b[1])
    .map(([piece]) => piece);
  return {tokenizer, pieces, merges: trained.model.merges};
}

async function wordsByCount(tokenizer, sample) {
  const counts = new Map();
  for (const text of fs.readFileSync(sample, 'utf8').split('\n\n')) {
    for (const [word] of tokenizer.getPreTokenizer().preTokenizeString(text)) {
      if (word.length <= 16) counts.set(word, (counts.get(word) || 0) + 1);
    }
  }
  return [...counts].sort((a, b) => b[1] - a[1]).map(([word]) => word);
}

async function vocabularies(sample, directory, size) {
  for (const kind of ['byte', 'space']) {
    const {tokenizer, pieces, merges} = train(kind, sample);
    const words = await wordsByCount(tokenizer, sample);
    for (const [name, family] of Object.entries(FAMILIES)) {
      if (family.kind !== kind) continue;
      const wanted = Number(size) || family.size;
      const grown = await grow(tokenizer, pieces, merges, words, kind, wanted);
      fs.writeFileSync(path.join(directory, `${name}.json`),
        JSON.stringify(family.make(grown.pieces, grown.merges)));
      console.log(`${name}: ${grown.pieces.length} pieces, ${grown.merges.length} merges`);
    }
  }
}

function letters() {
  return require(require.resolve('tokenizers', {paths: [process.cwd()]})).byteLevelAlphabet();
}

async function grow(tokenizer, pieces, merges, words, kind, wanted) {
  const first = kind === 'byte' ? letters().sort() : ['<unk>', '<s>', '</s>',
    ...Array.from({length: 256}, (_, i) =>
      `<0x${i.toString(16).toUpperCase().padStart(2, '0')}>`), SPACE];
  const known = new Set(first);
  const order = [...first];
  const chosen = [];
  const add = (piece) => {
    if (known.has(piece)) return;
    known.add(piece);
    order.push(piece);
  };
  const merge = (left, right) => {
    add(left + right);
    chosen.push([left, right]);
  };
  // Single characters first, the most frequent ones if there is little room.
  const singles = pieces.filter((piece) => [...piece].length === 1);
  for (const piece of singles.slice(0, Math.floor(wanted / 2))) add(piece);
  if (kind === 'space') {
    for (let n = 2; n <= 16; n *= 2) merge(SPACE.repeat(n / 2), SPACE.repeat(n / 2));
  }
  for (const [left, right] of merges) {
    if (order.length >= wanted) break;
    if (known.has(left) && known.has(right) && !known.has(left + right)) merge(left, right);
  }
  for (const word of words) {
    if (order.length >= wanted) break;
    if (known.has(word)) continue;
    // The tokenizer that was trained still splits by words: get its tokens by
    // way of a text without the marks.
    const tokens = await tokensOf(tokenizer, word, kind);
    if (tokens === null || !tokens.every((token) => known.has(token))) continue;
    for (let left = tokens[0], i = 1; i < tokens.length && order.length < wanted; ++i) {
      if (!known.has(left + tokens[i])) merge(left, tokens[i]);
      left += tokens[i];
    }
  }
  return {pieces: order, merges: chosen};
}

async function tokensOf(tokenizer, word, kind) {
  let text = word.replaceAll(SPACE, ' ');
  if (kind === 'byte') {
    const alphabet = new Map();
    let next = 256;
    for (let byte = 0; byte < 256; ++byte) {
      const own = (byte >= 33 && byte <= 126) || (byte >= 161 && byte !== 173);
      alphabet.set(String.fromCodePoint(own ? byte : next), byte);
      if (!own) ++next;
    }
    text = Buffer.from([...word].map((letter) => alphabet.get(letter))).toString('utf8');
  }
  const tokens = (await tokenizer.encode(text)).getTokens();
  return tokens.join('') === word ? tokens : null;
}

function* documents(corpus) {
  const bytes = fs.readFileSync(corpus);
  for (let at = 0; at < bytes.length;) {
    const size = bytes.readUInt32LE(at);
    yield bytes.subarray(at + 4, at + 4 + size);
    at += 4 + size;
  }
}

async function ids(file, corpus, out) {
  const tokenizer = Tokenizer.fromFile(file);
  const sink = fs.openSync(out, 'w');
  let [seconds, numBytes, numTokens] = [0, 0, 0];
  let batch = [];
  const flush = async () => {
    const begin = process.cpuUsage();
    const encodings = await tokenizer.encodeBatch(batch, {addSpecialTokens: false});
    const used = process.cpuUsage(begin);
    seconds += (used.user + used.system) / 1e6;
    for (const encoding of encodings) {
      const list = Int32Array.from(encoding.getIds());
      numTokens += list.length;
      fs.writeSync(sink, Buffer.from(Uint32Array.of(list.length).buffer));
      fs.writeSync(sink, Buffer.from(list.buffer));
    }
    batch = [];
  };
  for (const document of documents(corpus)) {
    // Ill-formed bytes become U+FFFD here.
    batch.push(document.toString('utf8'));
    numBytes += document.length;
    if (batch.length === 64) await flush();
  }
  if (batch.length) await flush();
  fs.closeSync(sink);
  console.log(JSON.stringify({bytes: numBytes, tokens: numTokens, seconds}));
}

async function cases(file, texts, out) {
  const tokenizer = Tokenizer.fromFile(file);
  const list = [];
  for (const text of JSON.parse(fs.readFileSync(texts))) {
    const plain = (await tokenizer.encode(text, null, {addSpecialTokens: false})).getIds();
    const special = (await tokenizer.encode(text, null, {addSpecialTokens: true})).getIds();
    list.push({text, ids: plain, with_special: special,
      decoded: await tokenizer.decode(plain, false)});
  }
  fs.writeFileSync(out, '[\n' + list.map((item) => JSON.stringify(item)).join(',\n') + '\n]\n');
}

const [command, ...args] = process.argv.slice(2);
const commands = {vocabularies, ids, cases};
if (!commands[command]) {
  console.error('oracle.js: expected vocabularies, ids or cases');
  process.exit(2);
}
commands[command](...args).catch((error) => {
  console.error(`oracle.js ${command}: ${error.message}`);
  process.exit(1);
});
