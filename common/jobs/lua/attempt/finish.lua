-- FINISH: end a job. Hash first, then the terminal event, then XACK, in this order.
--
-- keys  1 job hash   2 events stream   3 lease hash
--       4 running jobs of the task   (only if the task is limited across workers)
-- args  1 job id   2 attempt   3 token   4 message id
--       5 status   6 result JSON or ''   7 error JSON or ''
--       8 terminal step   9 terminal data JSON   10 '1' to write a dead letter, else ''
--       11 number of the first unsent event, then `type, step, data` per unsent event
-- answers
--   ok        ended by this call
--   already   ended before, by this attempt or another; the message is acked
--   lost      another attempt runs it: nothing written, nothing acked
--   gone      the job expired or was deleted: the result is dropped, the message is acked

operations[$OPERATION_FINISH] = function(key, arg, last, identity, key_count)
  local job, events, lease = unpack(KEYS, key, key + 2)
  local job_id, attempt, token, message_id, status, result, failure, step, data, dead, first_number =
    unpack(ARGV, arg, arg + 10)
  local group, default_ttl = ARGV[identity], ARGV[identity + 3]

  local record = redis.call('HMGET', job, $JOB_STATUS, $JOB_TTL_S)
  if not record[1] then
    acknowledge(group, message_id)
    return { $ANSWER_GONE }
  end
  local ttl = ttl_seconds(record[2], default_ttl)
  if TERMINAL[record[1]] then
    ensure_terminal_event(events, record[1], ttl, job_id)
    acknowledge(group, message_id)
    return { $ANSWER_ALREADY }
  end
  local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, $LEASE_EVENT_SEQ)
  if held[1] ~= attempt or held[2] ~= token then
    return { $ANSWER_LOST }
  end

  redis.call('EXPIRE', job, ttl) -- must come first, see MEMORY in the prelude
  append_numbered(events, arg + 11, last, tonumber(first_number), tonumber(held[3]) or 0)
  end_job(job, events, record[1], status, result, failure, step, data, ttl)
  if dead ~= '' then
    dead_letter_job(job, lease, job_id, message_id, attempt, failure)
  end
  redis.call('DEL', lease) -- from now on the terminal status fences other attempts off
  if key_count == '4' then
    free_slot(KEYS[key + 3], job_id)
  end
  acknowledge(group, message_id)
  hint(job_id)
  return { $ANSWER_OK }
end
