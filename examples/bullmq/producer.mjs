// Submits a job with BullMQ's Node library and watches a Python worker run it.
//
//   npm install && node producer.mjs
import { randomUUID } from 'node:crypto';
import { Queue, QueueEvents } from 'bullmq';

const url = new URL(process.env.REDIS_URL ?? 'redis://127.0.0.1:6379');
const connection =
  url.protocol === 'unix:'
    ? { path: url.pathname }
    : { host: url.hostname, port: Number(url.port || 6379), password: url.password || undefined };

const queue = new Queue('video-generation', { connection });
const events = new QueueEvents('video-generation', { connection });
await events.waitUntilReady();

events.on('progress', ({ jobId, data }) => console.log(`job ${jobId}: ${data} %`));
events.on('retry', ({ jobId, delay }) => console.log(`job ${jobId}: retry in ${delay} ms`));

const job = await queue.add(
  'video-generation',
  {
    videoId: randomUUID(),
    userId: 'user-123',
    script: {
      title: 'My Video',
      scenes: [{ sceneNumber: 1, duration: 5, voiceover: 'Welcome', imagePrompt: 'Sunset' }],
    },
    userImageUrls: ['https://example.com/img1.jpg'],
  },
  { priority: 1, attempts: 3, backoff: { type: 'exponential', delay: 1000 } },
);
console.log(`job ${job.id}: submitted`);

try {
  console.log(`job ${job.id}: done`, JSON.stringify(await job.waitUntilFinished(events, 60_000)));
} catch (error) {
  console.error(`job ${job.id}: ${error.message}`);
  process.exitCode = 1;
} finally {
  await Promise.all([events.close(), queue.close()]);
}
