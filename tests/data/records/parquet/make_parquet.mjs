// Writes the Parquet files of this folder and the rows that an independent
// reader finds in them:
//
//   npm install apache-arrow parquet-wasm hyparquet hyparquet-compressors hyparquet-writer
//   node make_parquet.mjs FOLDER

import fs from 'node:fs';
import {createRequire} from 'node:module';
import * as arrow from 'apache-arrow';
import {parquetReadObjects} from 'hyparquet';
import {compressors} from 'hyparquet-compressors';
import {parquetWriteFile} from 'hyparquet-writer';

const {Table, WriterPropertiesBuilder, Compression, Encoding, WriterVersion,
       writeParquet} = createRequire(import.meta.url)('parquet-wasm/node');
const folder = process.argv[2];
const count = 200;
const make = f => Array.from({length: count}, (_, i) => f(i));

const roles = ['system', 'user', 'assistant'];
const message = (i, j) => ({
  role: roles[j % 3],
  content: j === 2 && i % 3 === 0 ? null : `${i}/${j}`,
});
const messages = make(
    i => i % 7 === 3 ? null :
                       Array.from({length: i % 4}, (_, j) => message(i, j)));
const text = new arrow.Utf8();
const messageType = new arrow.Struct([
  new arrow.Field('role', text, true),
  new arrow.Field('content', text, true),
]);
const table = new arrow.Table({
  text: arrow.vectorFromArray(
      make(i => `Row ${i % 50}: ` + 'the mill \u00e9\u{1F30A} turns. '.repeat(i % 5)), text),
  id: arrow.vectorFromArray(make(i => BigInt(i) * 10000000000n), new arrow.Int64()),
  score: arrow.vectorFromArray(make(i => i / 4), new arrow.Float64()),
  small: arrow.vectorFromArray(make(i => i - 100), new arrow.Int32()),
  flag: arrow.vectorFromArray(make(i => i % 3 === 0), new arrow.Bool()),
  maybe: arrow.vectorFromArray(make(i => i % 2 ? null : `m${i}`), text),
  messages: arrow.vectorFromArray(
      messages, new arrow.List(new arrow.Field('item', messageType, true))),
});
const stream = arrow.tableToIPC(table, 'stream');

const properties = {
  snappy_v1: b => b.setCompression(Compression.SNAPPY),
  zstd_v2: b => b.setCompression(Compression.ZSTD).setWriterVersion(WriterVersion.V2)
                    .setEncoding(Encoding.PLAIN),
  gzip_plain: b => b.setCompression(Compression.GZIP).setDictionaryEnabled(false),
  plain_v2: b => b.setCompression(Compression.UNCOMPRESSED).setEncoding(Encoding.PLAIN)
                     .setWriterVersion(WriterVersion.V2).setDictionaryEnabled(false),
  brotli: b => b.setCompression(Compression.BROTLI),
  delta: b => b.setCompression(Compression.UNCOMPRESSED)
                  .setColumnDictionaryEnabled('text', false)
                  .setColumnEncoding('text', Encoding.DELTA_BYTE_ARRAY),
};
for (const [name, set] of Object.entries(properties)) {
  const builder = set(new WriterPropertiesBuilder().setMaxRowGroupSize(80));
  fs.writeFileSync(`${folder}/${name}.parquet`,
                   writeParquet(Table.fromIPCStream(stream), builder.build()));
}
parquetWriteFile({
  filename: `${folder}/javascript.parquet`,
  rowGroupSize: 50,
  columnData: [
    {name: 'text', data: make(i => `Row ${i}: ` + 'the mill turns. '.repeat(i % 5)), type: 'STRING'},
    {name: 'id', data: make(i => i), type: 'INT32'},
    {name: 'maybe', data: make(i => i % 2 ? undefined : `m${i}`), type: 'STRING', nullable: true},
    {name: 'time', data: make(i => new Date(i * 1000)), type: 'TIMESTAMP'},
  ],
});

async function writeRows(name, rows) {
  const bytes = fs.readFileSync(`${folder}/${name}.parquet`);
  const file = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  const objects = await parquetReadObjects({file, compressors});
  const lines = objects.map(
      row => JSON.stringify(row, (_, v) => typeof v === 'bigint' ? Number(v) : v ?? null) + '\n');
  fs.writeFileSync(`${folder}/${rows}`, lines.join(''));
}
await writeRows('snappy_v1', 'rows.jsonl');
await writeRows('javascript', 'javascript_rows.jsonl');
