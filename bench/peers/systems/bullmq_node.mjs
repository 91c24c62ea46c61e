// BullMQ on Node, worker or client; the client uses the protocol of `bench/peers/talk.py`.
//
//   node bullmq_node.mjs worker|client <directory with node_modules> <release>
import { createRequire } from 'node:module';
import { createInterface } from 'node:readline';

const [, , role, directory, release] = process.argv;
const { Job, Queue, QueueEvents, Worker } = createRequire(`${directory}/`)(release);
const url = new URL(process.env.PEER_REDIS_URL);
const connection = { host: url.hostname, port: Number(url.port) };
const QUEUE = 'bench';
const CALLERS = 16;
const CHECKERS = 32;
const TEXT = 'sluice '.repeat(40).slice(0, 189);
const reply = (members) => process.stdout.write(`${JSON.stringify(members)}\n`);

async function concurrently(callers, body) {
  await Promise.all(Array.from({ length: callers }, body));
}

async function client() {
  const queue = new Queue(QUEUE, { connection });
  const events = new QueueEvents(QUEUE, { connection });
  await events.waitUntilReady();
  const submit = () => queue.add('echo', { text: TEXT });
  const timed = async () => {
    const started = performance.now();
    const job = await submit();
    const result = await job.waitUntilFinished(events);
    if (result?.text !== TEXT) throw new Error(`unexpected result: ${JSON.stringify(result)}`);
    return performance.now() - started;
  };
  let ids = [];
  reply({ ready: true });
  for await (const line of createInterface({ input: process.stdin })) {
    const request = JSON.parse(line);
    if (request.do === 'latency') {
      const ms = [];
      for (let number = 0; number < request.count; number += 1) ms.push(await timed());
      reply({ ms });
    } else if (request.do === 'enqueue') {
      let left = request.count;
      const started = performance.now();
      await concurrently(CALLERS, async () => {
        while (left > 0) {
          left -= 1;
          ids.push((await submit()).id);
        }
      });
      reply({ seconds: (performance.now() - started) / 1000 });
    } else if (request.do === 'check') {
      let right = 0;
      await concurrently(CHECKERS, async () => {
        while (ids.length) {
          const job = await Job.fromId(queue, ids.pop());
          if (job?.returnvalue?.text === TEXT) right += 1;
        }
      });
      reply({ right });
    }
  }
  process.exit(0);
}

if (role === 'worker') {
  const worker = new Worker(QUEUE, async (job) => job.data, { connection, concurrency: 16 });
  worker.on('error', (error) => console.error(error.message));
} else {
  await client();
}
