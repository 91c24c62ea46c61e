// Node's own Worker with a no-op handler, for comparison in `bench/bullmq.py`.
//
//   node bullmq_worker.mjs <directory with node_modules> <release> <port> <queue> <concurrency>
import { createRequire } from 'node:module';

const [, , directory, release, port, queue, concurrency] = process.argv;
const { Worker } = createRequire(`${directory}/`)(release);
const connection = { host: '127.0.0.1', port: Number(port) };
const worker = new Worker(queue, async () => null, {
  connection,
  concurrency: Number(concurrency),
});
worker.on('error', (error) => console.error(error.message));
process.on('SIGTERM', () => worker.close().then(() => process.exit(0)));
