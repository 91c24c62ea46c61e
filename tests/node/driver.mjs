// Drives the real BullMQ for tests written in Python: one JSON object per line, in and out.
//
//   node driver.mjs bullmq6 '{"path": "/tmp/redis.sock"}' prefix
//   > {"n": 1, "op": "queue", "queue": "video", "method": "add", "args": ["name", {}, {}]}
//   < {"n": 1, "result": {"id": "1", …}}
//   < {"event": "completed", "queue": "video", "args": {"jobId": "1", …}}   after `listen`
import { createInterface } from 'node:readline';

const [, , release, connection, prefix] = process.argv;
const { Queue, QueueEvents, FlowProducer, Worker, UnrecoverableError, Job } = await import(release);
const options = { connection: JSON.parse(connection), prefix };

const queues = new Map();
const listeners = new Map();
const workers = new Map();
let flows;

const say = (message) => process.stdout.write(JSON.stringify(message) + '\n');
// Lost connections are opened again; ignore the errors.
const ignoreErrors = (emitter) => emitter.on('error', () => {});

function queueOf(name) {
  if (!queues.has(name)) {
    queues.set(name, ignoreErrors(new Queue(name, options)));
  }
  return queues.get(name);
}

const FIELDS = [
  'id', 'name', 'data', 'progress', 'returnvalue', 'failedReason', 'stacktrace', 'attemptsMade',
  'attemptsStarted', 'stalledCounter', 'processedBy', 'timestamp', 'processedOn', 'finishedOn',
  'delay', 'priority', 'parentKey', 'opts',
];

function plain(value) {
  if (value instanceof Job) {
    return Object.fromEntries(FIELDS.map((field) => [field, value[field]]));
  }
  if (Array.isArray(value)) return value.map(plain);
  if (value && value.job instanceof Job) {
    return { job: plain(value.job), children: (value.children ?? []).map(plain) };
  }
  return value;
}

async function listen(name) {
  const events = ignoreErrors(new QueueEvents(name, { ...options, lastEventId: '0' }));
  const emit = events.emit.bind(events);
  events.emit = (event, ...args) => {
    if (typeof event === 'string' && event !== 'error' && !event.includes(':')) {
      say({ event, queue: name, args: args[0] ?? null, id: args[1] ?? null });
    }
    return emit(event, ...args);
  };
  listeners.set(name, events);
  await events.waitUntilReady();
}

// Handlers of Node's own worker.
const KINDS = {
  echo: async (job) => job.data,
  noop: async () => null,
  progress: async (job) => {
    for (const percent of [25, 50, 75, 100]) await job.updateProgress(percent);
    return { done: job.data };
  },
  transient: async (job) => {
    if (job.attemptsMade < job.data.failures) throw new Error(`not yet: ${job.attemptsMade}`);
    return { attempts: job.attemptsMade + 1 };
  },
  permanent: async () => {
    throw new UnrecoverableError('never');
  },
  children: async (job) => Object.values(await job.getChildrenValues()),
  slow: async (job) => {
    await new Promise((resolve) => setTimeout(resolve, job.data.ms));
    return job.id;
  },
};

async function work({ queue, kind, ...settings }) {
  const run = async (job, token) => {
    say({ event: 'ran', queue, args: { jobId: job.id, name: job.name, attempt: job.attemptsMade } });
    return KINDS[kind === 'by-name' ? job.name : kind](job, token);
  };
  const worker = ignoreErrors(new Worker(queue, run, { ...options, ...settings }));
  workers.set(queue, worker);
  await worker.waitUntilReady();
}

const OPERATIONS = {
  queue: ({ queue, method, args = [] }) => queueOf(queue)[method](...args),
  job: async ({ queue, id, method, args = [] }) => {
    const job = await queueOf(queue).getJob(id);
    if (!job) throw new Error(`no job ${id}`);
    return method ? job[method](...args) : job;
  },
  flood: async ({ queue, count, name, opts = {} }) => {
    const target = queueOf(queue);
    await target.waitUntilReady();
    const adds = Array.from({ length: count }, (_, at) => target.add(name, { at }, opts));
    return (await Promise.all(adds)).map((job) => job.id);
  },
  flow: ({ tree }) => {
    flows ??= ignoreErrors(new FlowProducer(options));
    return flows.add(tree);
  },
  listen: ({ queue }) => listen(queue),
  finished: async ({ queue, id, ttl }) => {
    const job = await queueOf(queue).getJob(id);
    return job.waitUntilFinished(listeners.get(queue), ttl);
  },
  work,
  rest: ({ queue }) => workers.get(queue).close(),
  memory: () => process.memoryUsage().rss,
};

async function answer(line) {
  const { n, op, ...rest } = JSON.parse(line);
  try {
    say({ n, result: plain((await OPERATIONS[op](rest)) ?? null) });
  } catch (error) {
    say({ n, error: error.message });
  }
}

createInterface({ input: process.stdin })
  .on('line', answer)
  .on('close', () => process.exit(0));
say({ ready: true });
