-- ITEMS: how items change, and the data needed to undo that.
--
-- Every change is part of an operation, and the job keeps the last ones:
--   undo        LIST of their tokens, the newest first
--   operations  HASH, token to { kind, ms, items = { id = inverse }, effects? }, JSON
--   undoable    HASH, item id to the token of the last operation that changed it, prefixed with `!`
--               if only the whole operation can be undone
-- An inverse is { status, edited, confidence } before the change, `payload` if it changed, and
-- `before`: the previous entry in `undoable`. An item has not changed since an operation if and
-- only if `undoable` names that operation: anything later was undone. So versions need not be
-- compared, nor corrected in older operations when a newer one is undone. An operation that a
-- worker has undone is kept as { undone = [id…], ms }, off the list: a repeated call after a lost
-- reply must get the same answer.

local REVIEWABLE = {
  [$ITEM_PROPOSED] = true,
  [$ITEM_APPROVED] = true,
  [$ITEM_REJECTED] = true,
}
-- An event with more items than this has only their number.
local MAX_ITEMS_IN_EVENT = 100

-- The first version of a step's new items: above those of items with the same ids before the step
-- was executed again, so that they cannot be confused.
local function first_version(job, step)
  return (tonumber(job.step(step, $FIELD_VERSION_FLOOR)) or 0) + 1
end

-- Appends a new item to a step. `confidence` is text with six decimals.
local function add_item(job, step, payload, status, confidence)
  local declared = job.step_at(step)
  local seq = as_integer(job.number($RECORD_ITEM_SEQ) + 1)
  local number = redis.call('ZCARD', job.order_of(step)) + 1
  local id = declared[$DEFINITION_PREFIX] .. string.format('_%03d', number)
  local state = { status = status, version = first_version(job, step), edited = false,
    confidence = confidence }
  job.set($RECORD_ITEM_SEQ, seq)
  redis.call('HSET', job.key($KEY_ITEMS), id, payload)
  redis.call('HSET', job.key($KEY_STATES), id, encode_state(state))
  redis.call('ZADD', job.key($KEY_ORDER), seq, id)
  redis.call('ZADD', job.order_of(step), seq, id)
  count_item(job, declared, state, 1)
  return id
end

-- Writes new states of many items of a step: a list of { id, before, after }. Like `write_item` for
-- each, in a few commands.
local function write_items(job, step, written)
  local proposes = job.step_at(step)[$DEFINITION_PROPOSES]
  local counts, states = {}, {}
  local function count(state, by)
    local counter = COUNTED[state.status]
    if counter then
      counts[counter] = (counts[counter] or 0) + by
    end
    if is_pending(state) then
      counts[$RECORD_PENDING_CHANGES] = (counts[$RECORD_PENDING_CHANGES] or 0) + by
    end
  end
  for at, item in ipairs(written) do
    states[2 * at - 1], states[2 * at] = item.id, encode_state(item.after)
    if proposes then
      count(item.before, -1)
      count(item.after, 1)
    end
  end
  in_batches('HSET', job.key($KEY_STATES), states)
  for counter, by in pairs(counts) do
    job.set(counter, math.max(job.number(counter) + by, 0))
  end
end

-- Unix milliseconds as RFC 3339 in UTC, to the second. Years begin in March here, so that a leap
-- day is the last of its year; 719468 days lie between 0000-03-01 and 1970-01-01.
local function rfc3339(ms)
  local seconds = math.floor(ms / 1000)
  local days, rest = math.floor(seconds / 86400) + 719468, seconds % 86400
  local era = math.floor(days / 146097)
  local day = days % 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524)
    - math.floor(day / 146096)) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02dZ', year, month, day,
    math.floor(rest / 3600), math.floor(rest / 60) % 60, rest % 60)
end

-- Eight hexadecimal digits that are new to the job, if the caller gave none: a hash of its id and
-- the number of its next event.
local function fresh_digits(job)
  local mixed = (job.number($RECORD_EVENT_SEQ) + 1) * 2654435761
  local own = 0
  for at = 1, #job.id do
    own = (own * 31 + string.byte(job.id, at)) % 4294967296
  end
  return string.format('%08x', (own * 65537 + mixed) % 4294967296)
end

local function bare(token)
  return (string.gsub(token, '^!', ''))
end

-- Ids of an operation's items, and the entry of each in `undoable`.
local function held_by(job, operation)
  local ids = {}
  for id in pairs(operation[$OPERATION_FIELD_ITEMS] or {}) do
    ids[#ids + 1] = id
  end
  return ids, values_of(job.key($KEY_UNDOABLE), ids)
end

-- Removes the token from the step that it belonged to, if any.
local function forget_token(job, token)
  for _, name in ipairs(job.step_names) do
    if job.step(name, $FIELD_UNDO_TOKEN) == token then
      job.set_step(name, $FIELD_UNDO_TOKEN, '')
    end
  end
end

-- Drops the oldest operation, which can no longer be undone, and the history of items that it was
-- the last to change.
local function drop_oldest(job)
  local token = redis.call('RPOP', job.key($KEY_UNDO))
  local raw = redis.call('HGET', job.key($KEY_OPERATIONS), token)
  if raw then
    local ids, entries = held_by(job, cjson.decode(raw))
    local lost = {}
    for at, id in ipairs(ids) do
      if entries[at] and bare(entries[at]) == token then
        lost[#lost + 1] = id
      end
    end
    in_batches('HDEL', job.key($KEY_UNDOABLE), lost)
    redis.call('HDEL', job.key($KEY_OPERATIONS), token)
  end
  forget_token(job, token)
end

-- Adds an operation to the list: { kind, ms, items, effects? }.
local function record_operation(job, token, operation)
  local undo = job.key($KEY_UNDO)
  local ids, entries = held_by(job, operation)
  local named = {}
  local name = operation[$OPERATION_FIELD_EFFECTS] and '!' .. token or token
  for at, id in ipairs(ids) do
    operation[$OPERATION_FIELD_ITEMS][id][$OPERATION_FIELD_BEFORE] = entries[at] or nil
    named[2 * at - 1], named[2 * at] = id, name
  end
  redis.call('HSET', job.key($KEY_OPERATIONS), token, cjson.encode(operation))
  redis.call('LREM', undo, 0, token)
  redis.call('LPUSH', undo, token)
  in_batches('HSET', job.key($KEY_UNDOABLE), named)
  while redis.call('LLEN', undo) > $UNDO_DEPTH do
    drop_oldest(job)
  end
end

-- Tokens of the operations that can be undone, as a set.
local function undo_tokens(job)
  local tokens = {}
  for _, token in ipairs(redis.call('LRANGE', job.key($KEY_UNDO), 0, -1)) do
    tokens[token] = true
  end
  return tokens
end

-- A token that no operation has: the caller's, unless it happens to be used.
local function unused_token(job, digits)
  local token = $UNDO_PREFIX .. digits
  while redis.call('HEXISTS', job.key($KEY_OPERATIONS), token) == 1 do
    token = token .. '0'
  end
  return token
end

-- Adds an operation to the review's items, up to a maximum; the events report all.
local function record_review(job, review, ids, token, details)
  if not review or redis.call('ZCARD', job.order_of(review)) >= $MOST_ITEMS then
    return
  end
  add_item(job, review, cjson.encode({
    [$AUDIT_WHO] = details.who, [$AUDIT_AT] = rfc3339(now_ms),
    [$AUDIT_OPERATION] = details.operation, [$AUDIT_PROPOSALS] = ids,
    [$AUDIT_NOTE] = details.note or '', [$AUDIT_UNDO_TOKEN] = token,
    [$AUDIT_DECISIONS] = details.decisions and #details.decisions > 0 and details.decisions or nil,
  }), $ITEM_COMPLETE, '1.000000')
end

-- Applies changes as one operation: a list of { id, before, status, confidence?, payload? }; a
-- payload marks its item as edited. `details` is { kind, who, operation, digits, note?,
-- decisions? }. Returns the token, '' if the list is empty.
local function make_changes(job, step, review, changes, details)
  if #changes == 0 then
    return ''
  end
  local inverses, ids, written = {}, {}, {}
  for at, change in ipairs(changes) do
    local before = change.before
    local inverse = {
      [$OPERATION_FIELD_STATUS] = before.status, [$OPERATION_FIELD_EDITED] = before.edited,
      [$OPERATION_FIELD_CONFIDENCE] = before.confidence,
    }
    if change.payload then
      inverse[$OPERATION_FIELD_PAYLOAD] = redis.call('HGET', job.key($KEY_ITEMS), change.id) or nil
      redis.call('HSET', job.key($KEY_ITEMS), change.id, change.payload)
    end
    written[at] = { id = change.id, before = before, after = {
      status = change.status, version = before.version + 1,
      edited = change.payload ~= nil or before.edited,
      confidence = change.confidence or before.confidence,
    } }
    inverses[change.id], ids[at] = inverse, change.id
  end
  write_items(job, step, written)
  local token = unused_token(job, details.digits)
  record_operation(job, token, {
    [$OPERATION_FIELD_KIND] = details.kind, [$OPERATION_FIELD_MS] = now_ms,
    [$OPERATION_FIELD_ITEMS] = inverses,
  })
  record_review(job, review, ids, token, details)
  emit_event(job, $WF_EVENT_ITEM_CHANGED, step, cjson.encode({
    [$FACT_OPERATION] = details.operation, [$FACT_COUNT] = #ids, [$FACT_UNDO_TOKEN] = token,
    [$FACT_WHO] = details.who, [$FACT_ITEMS] = #ids <= MAX_ITEMS_IN_EVENT and ids or nil,
  }))
  return token
end
