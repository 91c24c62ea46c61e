-- CLAIM_DELIVERY: claim what is due of a job's outbox, or a letter that is sent again.
--
-- keys  none
-- args  1 name: a job's id for its outbox, an event's id for its letter
--       2 token of this attempt   3 lease ms: how long nobody else may take it
-- answers
--   ok        then attempt, what to send (the outbox's first entry, or the letter's body), url,
--             workflow, earlier attempts; a repeat of the very call hears the same
--   missing   nothing is left, or the job has expired: it is due no more
--   lost      it is not due, or another has it

-- What the three operations of deliveries share.
local hooks = {}

function hooks.record(name)
  return names.delivery .. name
end

function hooks.is_letter(name)
  return string.find(name, ':', 1, true) ~= nil
end

-- Of a letter's event: `id status ms url` as the hash of the letters has it; nil for none.
function hooks.letter_at(event_id)
  local raw = redis.call('HGET', names.letters, event_id)
  if not raw then
    return nil
  end
  local id, status, ms, url = string.match(raw, '^(%d+%-%d+) (%a+) (%d+) (%S*)$')
  return id and { id = id, status = status, ms = ms, url = url }
end

function hooks.mark_letter(event_id, letter, status)
  redis.call('HSET', names.letters, event_id,
    table.concat({ letter.id, status, now_text, letter.url }, ' '))
end

-- What a letter holds, field by field; nil where it was trimmed.
function hooks.read_letter(id)
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

-- Letters of the same job that are sent again. Only the oldest of them is due: a receiver hears of
-- a job in order then, too. Fails where something else is under that name.
function hooks.redrives(event_id)
  local waiting = names.redrives .. string.match(event_id, '^[^:]*')
  must_be(waiting, 'list')
  return waiting
end

-- A name is due no more; of letters the next one is.
function hooks.leave(name)
  redis.call('ZREM', names.deliveries, name)
  if hooks.is_letter(name) then
    local waiting = hooks.redrives(name)
    redis.call('LREM', waiting, 0, name)
    hooks.let_go(waiting)
  end
end

-- The oldest of the letters in a list is due, if there is one.
function hooks.let_go(waiting)
  local oldest = redis.call('LINDEX', waiting, 0)
  if oldest then
    redis.call('ZADD', names.deliveries, 'NX', now_text, oldest)
  end
end

-- Nothing is left to do under this name.
function hooks.forget(name)
  hooks.leave(name)
  redis.call('DEL', hooks.record(name))
end

-- To be sent, url and workflow; nil where there is nothing.
function hooks.due(name)
  if hooks.is_letter(name) then
    local letter = hooks.letter_at(name)
    local fields = letter and hooks.read_letter(letter.id)
    if not fields then
      redis.call('HDEL', names.letters, name)
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
  if hooks.is_letter(name) then
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
