-- QUEUEING: shared by all operations that put a job on the queue: the backlog, accepting a job,
-- adding it to the stream, and rate limits. Also part of the workflow and image scripts.

-- The number of entries not delivered to the group. Redis 7 knows it (lag). Before that, and if
-- deletions made it unknown, count the *delivered* entries still in the stream, and no further than
-- necessary; trimming keeps them few. A user that may add to the queue but not read it (ACL) counts
-- everything as undelivered that is not pending.
local function undelivered(group, length, pending, limit)
  for _, info in ipairs(redis.call('XINFO', 'GROUPS', queue)) do
    local fields = {}
    for index = 1, #info, 2 do
      fields[info[index]] = info[index + 1]
    end
    if fields['name'] == group then
      if type(fields['lag']) == 'number' then
        return fields['lag']
      end
      local last = fields['last-delivered-id']
      local enough = math.max(length + pending - limit + 1, 1)
      local delivered = redis.pcall('XRANGE', queue, '-', last, 'COUNT', enough)
      return math.max(length - (delivered['err'] and pending or #delivered), 0)
    end
  end
  return length
end

local function backlog_of(group, limit)
  local length = redis.call('XLEN', queue)
  local summary = redis.pcall('XPENDING', queue, group)
  if summary['err'] then
    return length -- no group yet: nothing was delivered
  end
  local pending = tonumber(summary[1])
  if pending + length < limit then
    return pending + length -- an upper bound, and already low enough
  end
  return pending + undelivered(group, length, pending, limit)
end

-- Accepts a job that is not on the queue yet; the caller has checked the limits.
local function accept(job, events, job_id, task, payload, ttl_s, step, data, keep_s)
  redis.call('HSET', job,
    $JOB_JOB_ID, job_id, $JOB_TASK, task, $JOB_PAYLOAD, payload,
    $JOB_STATUS, $STATUS_QUEUED, $JOB_CREATED_TS, now_text, $JOB_UPDATED_TS, now_text,
    $JOB_TTL_S, ttl_s, $JOB_RESULT, '', $JOB_ERROR, '')
  redis.call('EXPIRE', job, keep_s)
  local ok, fault = pcall(append_event, events, $EVENT_TYPE_QUEUED, step, data)
  if not ok then
    redis.call('DEL', job)
    error(fault)
  end
  redis.call('EXPIRE', events, keep_s)
  count_job($COUNT_ACCEPTED)
  index_job(job_id)
end

-- Adds a job to the queue, or to the stream of another lane.
local function put_on_queue(job_id, task, payload, stream)
  return redis.call('XADD', stream or queue, '*',
    $QUEUE_JOB_ID, job_id, $QUEUE_TASK, task, $QUEUE_PAYLOAD, payload)
end

-- GCRA: how long the key's next job has to wait, and when the following one is allowed, both in
-- microseconds. The state is a single number. If it is further ahead than a full burst, the clock
-- was set back or the rate of the key was changed.
local function check_rate(rate, interval_us, burst)
  local now_us = clock[1] * 1000000 + clock[2]
  local allowance = interval_us * burst
  local due = tonumber(redis.call('GET', rate) or '') or now_us
  due = math.min(now_us + allowance, math.max(now_us, due)) + interval_us
  return due - allowance - now_us, due, now_us
end
