-- SETTLE_DELIVERY: record the outcome of an attempt. Only the attempt that claimed it last may.
--
-- keys  none
-- args  1 name, as claimed   2 its job id   3 token   4 outcome (DeliveryOutcome)
--       5 ms until the next attempt   6 JSON of this attempt, for the dead letter
--       then, if an outbox entry is dead-lettered, `field, value` of its dead letter
-- answers
--   ok        the outbox's next entry is due, or this one after its delay
--   already   the same call was made before
--   lost      another worker has it: nothing written

-- Records the status of the last delivery. It is not a change of the job: `updated_ms` stays.
function hooks.set_job_status(job_id, status)
  local job = job_of(job_id)
  if redis.call('EXISTS', job.record) == 1 then
    redis.call('HSET', job.record, $RECORD_WEBHOOK_STATUS, status, $RECORD_WEBHOOK_MS, now_text)
  end
end

-- Appends a dead letter to the stream; the oldest are trimmed, together with their states.
function hooks.add_dead_letter(fields)
  local id = redis.call('XADD', names.dead_deliveries, '*', $LETTER_FAILED_MS, now_text,
    unpack(fields))
  local named = {}
  for at = 1, #fields, 2 do
    named[fields[at]] = fields[at + 1]
  end
  local dead_letter = { id = id, url = named[$LETTER_URL] }
  hooks.mark_dead_letter(named[$LETTER_EVENT_ID], dead_letter, $REDRIVE_NONE)
  local excess = redis.call('XLEN', names.dead_deliveries) - $LETTERS_KEPT
  if excess <= 0 then
    return
  end
  local oldest = redis.call('XRANGE', names.dead_deliveries, '-', '+', 'COUNT',
    math.min(excess, 100))
  for _, entry in ipairs(oldest) do
    for at = 1, #entry[2], 2 do
      if entry[2][at] == $LETTER_EVENT_ID then
        redis.call('HDEL', names.dead_letter_states, entry[2][at + 1])
      end
    end
    redis.call('XDEL', names.dead_deliveries, entry[1])
  end
end

-- Ends the attempt; a repeated call is recognised by its token.
function hooks.end_attempt(delivery, token, detail)
  if detail then
    local before = redis.call('HGET', delivery, $DELIVERY_DETAIL)
    local whole = before and before ~= '' and before .. ',' .. detail or detail
    redis.call('HSET', delivery, $DELIVERY_DETAIL, whole)
  else
    redis.call('HDEL', delivery, $DELIVERY_ATTEMPT, $DELIVERY_DETAIL)
  end
  redis.call('HSET', delivery, $DELIVERY_TOKEN, '', $DELIVERY_SETTLED, token)
  redis.call('EXPIRE', delivery, $DELIVERY_KEPT_S)
end

-- Removes the outbox's first entry and continues with the next.
function hooks.advance_outbox(name, job)
  redis.call('LPOP', job.key($KEY_OUTBOX))
  if redis.call('LLEN', job.key($KEY_OUTBOX)) > 0 then
    redis.call('ZADD', names.deliveries, now_text, name)
  else
    redis.call('ZREM', names.deliveries, name)
  end
end

hooks.job_status = {
  [$SETTLEMENT_OK] = $SENT_OK,
  [$SETTLEMENT_RETRY] = $SENT_RETRYING,
  [$SETTLEMENT_DEAD] = $SENT_FAILED,
}
hooks.redrive_status = {
  [$SETTLEMENT_OK] = $REDRIVE_OK,
  [$SETTLEMENT_RETRY] = $REDRIVE_RETRYING,
  [$SETTLEMENT_DEAD] = $REDRIVE_FAILED,
}

operations[$WF_OPERATION_SETTLE_DELIVERY] = function(key, arg, last)
  local name, job_id, token, outcome, delay_ms, detail = unpack(ARGV, arg, arg + 5)
  local delivery = hooks.record(name)
  local held = redis.call('HMGET', delivery, $DELIVERY_TOKEN, $DELIVERY_SETTLED)
  if held[2] == token then
    return found($FOUND_ALREADY)
  end
  if held[1] ~= token then
    return found($FOUND_LOST)
  end
  local dead_letter = hooks.is_dead_letter(name) and hooks.redrives(name)
    and hooks.dead_letter_at(name)
  redis.call('EXPIRE', delivery, $DELIVERY_KEPT_S)
  if dead_letter and hooks.redrive_status[outcome] then
    hooks.mark_dead_letter(name, dead_letter, hooks.redrive_status[outcome])
  end
  if outcome == $SETTLEMENT_RETRY then
    hooks.end_attempt(delivery, token, detail)
    redis.call('ZADD', names.deliveries, as_integer(now_ms + tonumber(delay_ms)), name)
  else
    if arg + 6 <= last then
      hooks.add_dead_letter({ unpack(ARGV, arg + 6, last) })
    end
    hooks.end_attempt(delivery, token)
    if hooks.is_dead_letter(name) then
      hooks.unschedule(name)
    else
      hooks.advance_outbox(name, job_of(name))
    end
  end
  if hooks.job_status[outcome] then
    hooks.set_job_status(job_id, hooks.job_status[outcome])
  end
  return found($FOUND_OK)
end
