-- CLAIM_DELIVERY: claim the next delivery of a job's outbox, or the redrive of a dead letter.
--
-- keys  none
-- args  1 name: a job id for its outbox, an event id for its dead letter
--       2 token of this attempt   3 lease ms: how long no other worker may claim it
-- answers
--   ok        then attempt, content (the outbox's first entry, or the dead letter's body), url,
--             workflow, earlier attempts; a repeated call gets the same answer
--   missing   nothing is left, or the job has expired: it is not due any more
--   lost      it is not due, or another worker has it

-- Shared by the three delivery operations.
local hooks = {}

function hooks.record(name)
  return names.delivery .. name
end

function hooks.is_dead_letter(name)
  return string.find(name, ':', 1, true) ~= nil
end

-- The redrive state of an event's dead letter, `id status ms url`; nil if there is none.
function hooks.dead_letter_at(event_id)
  local raw = redis.call('HGET', names.dead_letter_states, event_id)
  if not raw then
    return nil
  end
  local id, status, ms, url = string.match(raw, '^(%d+%-%d+) (%a+) (%d+) (%S*)$')
  return id and { id = id, status = status, ms = ms, url = url }
end

function hooks.mark_dead_letter(event_id, dead_letter, status)
  redis.call('HSET', names.dead_letter_states, event_id,
    table.concat({ dead_letter.id, status, now_text, dead_letter.url }, ' '))
end

-- The fields of a dead letter; nil if it was trimmed.
function hooks.read_dead_letter(id)
  local entry = redis.call('XRANGE', names.dead_deliveries, id, id)[1]
  if not entry then
    return nil
  end
  local fields = {}
  for at = 1, #entry[2], 2 do
    fields[entry[2][at]] = entry[2][at + 1]
  end
  return fields
end

-- The list of a job's dead letters to redrive. Only the oldest is due, so that the receiver gets
-- the events of a job in order. Fails if the key has the wrong type.
function hooks.redrives(event_id)
  local waiting = names.redrives .. string.match(event_id, '^[^:]*')
  must_be(waiting, 'list')
  return waiting
end

-- Removes a name from the due deliveries; the next dead letter of the job becomes due.
function hooks.unschedule(name)
  redis.call('ZREM', names.deliveries, name)
  if hooks.is_dead_letter(name) then
    local waiting = hooks.redrives(name)
    redis.call('LREM', waiting, 0, name)
    hooks.make_oldest_due(waiting)
  end
end

-- Makes the oldest dead letter of a list due, if there is one.
function hooks.make_oldest_due(waiting)
  local oldest = redis.call('LINDEX', waiting, 0)
  if oldest then
    redis.call('ZADD', names.deliveries, 'NX', now_text, oldest)
  end
end

-- Removes everything about this name.
function hooks.forget(name)
  hooks.unschedule(name)
  redis.call('DEL', hooks.record(name))
end

-- Content, url and workflow of a delivery; nil if there is none.
function hooks.due(name)
  if hooks.is_dead_letter(name) then
    local dead_letter = hooks.dead_letter_at(name)
    local fields = dead_letter and hooks.read_dead_letter(dead_letter.id)
    if not fields then
      redis.call('HDEL', names.dead_letter_states, name)
      return nil
    end
    return fields[$LETTER_BODY] or '', fields[$LETTER_URL] or '', ''
  end
  local job = job_of(name)
  local record = redis.call('HMGET', job.record, $RECORD_WEBHOOK_URL, $RECORD_WORKFLOW)
  local entry = redis.call('LINDEX', job.key($KEY_OUTBOX), 0)
  if not record[1] or not entry then
    redis.call('DEL', job.key($KEY_OUTBOX))
    return nil
  end
  return entry, record[1], record[2] or ''
end

operations[$WF_OPERATION_CLAIM_DELIVERY] = function(key, arg)
  local name, token, lease_ms = ARGV[arg], ARGV[arg + 1], tonumber(ARGV[arg + 2])
  local score = redis.call('ZSCORE', names.deliveries, name)
  if not score then
    return found($FOUND_MISSING)
  end
  if hooks.is_dead_letter(name) then
    hooks.redrives(name)
  end
  local delivery = hooks.record(name)
  local held = redis.call('HMGET', delivery, $DELIVERY_TOKEN, $DELIVERY_ATTEMPT, $DELIVERY_DETAIL)
  local again = held[1] == token
  if tonumber(score) > now_ms and not again then
    return found($FOUND_LOST)
  end
  local content, url, workflow = hooks.due(name)
  if not content then
    hooks.forget(name)
    return found($FOUND_MISSING)
  end
  local attempt = (tonumber(held[2]) or 0) + (again and 0 or 1)
  redis.call('EXPIRE', delivery, $DELIVERY_KEPT_S)
  redis.call('ZADD', names.deliveries, as_integer(now_ms + lease_ms), name)
  redis.call('HSET', delivery, $DELIVERY_TOKEN, token, $DELIVERY_ATTEMPT, as_integer(attempt))
  redis.call('EXPIRE', delivery, $DELIVERY_KEPT_S)
  local reply = found($FOUND_OK)
  for _, part in ipairs({ as_integer(attempt), content, url, workflow, held[3] or '' }) do
    reply[#reply + 1] = part
  end
  return reply
end
