-- RENEW: extend the lease of a running attempt, its message and the keys of its job.
--
-- keys  1 job hash   2 events stream   3 lease hash
--       4 running jobs of the task   (only if the task is limited across workers)
-- args  1 attempt   2 token   3 message id   4 job id
-- answers
--   ok          lease and TTLs extended, idle time of the message reset
--   canceling   the same, and a cancel of the job was requested
--   lost        another attempt took over, or the job ended: this one must stop
--   gone        the job expired or was deleted

operations[$OPERATION_RENEW] = function(key, arg, last, identity, key_count)
  local job, events, lease = unpack(KEYS, key, key + 2)
  local attempt, token, message_id, job_id = unpack(ARGV, arg, last)
  local group, consumer, lease_ms, default_ttl = unpack(ARGV, identity, identity + 3)

  local record = redis.call('HMGET', job, $JOB_STATUS, $JOB_TTL_S)
  if not record[1] then
    return { $ANSWER_GONE }
  end
  local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, $LEASE_CANCEL_MS)
  if TERMINAL[record[1]] or held[1] ~= attempt or held[2] ~= token then
    return { $ANSWER_LOST }
  end
  local ttl = ttl_seconds(record[2], default_ttl)
  redis.call('EXPIRE', job, ttl) -- must come first, see MEMORY in the prelude
  redis.call('HSET', lease, $LEASE_DEADLINE_MS, deadline_after(lease_ms))
  redis.call('EXPIRE', events, ttl)
  redis.call('EXPIRE', lease, ttl)
  if key_count == '4' then
    hold_slot(KEYS[key + 3], job_id, lease_ms)
  end
  -- JUSTID resets the idle time without raising the delivery count.
  redis.pcall('XCLAIM', queue, group, consumer, 0, message_id, 'JUSTID')
  return { held[3] and $ANSWER_CANCELING or $ANSWER_OK }
end
