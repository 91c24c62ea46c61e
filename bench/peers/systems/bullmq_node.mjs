// BullMQ on Node, worker or client; the client speaks as `bench/peers/talk.py` does.
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
const say = (words) => process.stdout.write(`${JSON.stringify(words)}\n`);

async function beside(callers, body) {
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
    if (result?.text !== TEXT) throw new Error(`the result is no echo: ${JSON.stringify(result)}`);
    return performance.now() - started;
  };
  let ids = [];
  say({ ready: true });
  for await (const line of createInterface({ input: process.stdin })) {
    const asked = JSON.parse(line);
    if (asked.do === 'latency') {
      const ms = [];
      for (let number = 0; number < asked.count; number += 1) ms.push(await timed());
      say({ ms });
    } else if (asked.do === 'enqueue') {
      let left = asked.count;
      const started = performance.now();
      await beside(CALLERS, async () => {
        while (left > 0) {
          left -= 1;
          ids.push((await submit()).id);
        }
      });
      say({ seconds: (performance.now() - started) / 1000 });
    } else if (asked.do === 'check') {
      let right = 0;
      await beside(CHECKERS, async () => {
        while (ids.length) {
          const job = await Job.fromId(queue, ids.pop());
          if (job?.returnvalue?.text === TEXT) right += 1;
        }
      });
      say({ right });
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
