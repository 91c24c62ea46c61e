-- UNDO: undo the last change of an item, or a whole operation.
--
-- keys  1 stored answer   (none for a worker, which undoes whole operations with their effects)
-- args  1 fingerprint   2 ttl_s of the answer   3 claim ms   4 token of this call
--       5 job id   6 undo token, of an item or an operation
-- answers
--   ok, {undone, token}     these items are as before, except for their versions
--   already, {undone}       a worker has done it before
--   beyond, {token}         it has effects outside the workflow: a worker must undo it
--   missing, {what}         the job does not exist, or the token cannot undo anything
--   reused                  the key was used with another request
--   refused, {code, items}  these have changed since, can only be undone with others (`token`), or
--                           a running step uses them (`step`): nothing written

-- By number: p_999 comes before p_1000.
local function sort_ids(ids)
  table.sort(ids, function(left, right)
    if #left ~= #right then
      return #left < #right
    end
    return left < right
  end)
  return ids
end

-- The operation of a token, its own token, and the items to change. nil if there is none, followed
-- by the ids of an operation that was undone before.
local function resolve_token(job, token)
  local item = string.match(token, '^' .. $UNDO_PREFIX .. '([a-z0-9]+_%d+)$')
  local entry = item and redis.call('HGET', job.key($KEY_UNDOABLE), item)
  local own = item and bare(entry or '') or token
  local raw = own ~= '' and redis.call('HGET', job.key($KEY_OPERATIONS), own)
  if not raw then
    return nil
  end
  local operation = cjson.decode(raw)
  if not undo_tokens(job)[own] then -- undone before, or not completed yet
    return nil, operation[$OPERATION_FIELD_UNDONE]
  end
  local items = operation[$OPERATION_FIELD_ITEMS] or {}
  operation[$OPERATION_FIELD_ITEMS] = items
  if item and not items[item] then
    return nil
  end
  return { operation = operation, token = own, item = item,
    effects = operation[$OPERATION_FIELD_EFFECTS] ~= nil }
end

-- Items that were changed since, or are gone.
local function changed_since(job, target, ids)
  local conflicts = {}
  local entries = values_of(job.key($KEY_UNDOABLE), ids)
  local states = values_of(job.key($KEY_STATES), ids)
  for at, id in ipairs(ids) do
    if not states[at] or bare(entries[at] or '') ~= target.token then
      conflicts[#conflicts + 1] = id
    end
  end
  return conflicts
end

-- The step whose items an operation changed, and the position of the review on which later steps
-- depend, or of the step itself if it has no review.
local function touched_by(job, ids)
  local declared = ids[1] and job.step_of_item(ids[1])
  if not declared then
    return nil, nil, 0
  end
  local step = declared[$DEFINITION_NAME]
  local review, at = nil, job.index_of(step)
  for position, name in ipairs(job.step_names) do
    if job.step_at(name)[$DEFINITION_REVIEWS] == step then
      review, at = name, position
    end
  end
  return step, review, at
end

-- The answer that refuses it because of later steps: a running one, or one to be undone first.
local function refusal_by_steps(job, target, ids, from)
  for at = from + 1, #job.step_names do
    local name = job.step_names[at]
    local own = job.step(name, $FIELD_UNDO_TOKEN)
    local depends = #ids > 0 or job.step_at(at)[$DEFINITION_SETTLES]
    if depends and job.step(name, $FIELD_STATUS) == $STEPPER_RUNNING then
      return refuse($CODE_STEP_IN_PROGRESS,
        { [$FACT_STEP] = name, [$FACT_EXECUTION_ID] = job.step(name, $FIELD_EXECUTION) })
    end
    if #ids > 0 and own ~= '' and own ~= target.token
      and target.operation[$OPERATION_FIELD_KIND] ~= $OPERATION_KIND_STEP
      and undo_tokens(job)[own] then
      return refuse($CODE_UNDO_CONFLICT, { [$FACT_ITEMS] = ids, [$FACT_TOKEN] = own })
    end
  end
  return nil
end

-- Keeps as many undone operations as can be undone; drops the oldest.
local function forget_undone(job)
  local listed, left = undo_tokens(job), {}
  for _, token in ipairs(redis.call('HKEYS', job.key($KEY_OPERATIONS))) do
    local operation = not listed[token]
      and cjson.decode(redis.call('HGET', job.key($KEY_OPERATIONS), token))
    if operation and operation[$OPERATION_FIELD_UNDONE] then
      left[#left + 1] = { token = token, ms = tonumber(operation[$OPERATION_FIELD_MS]) or 0 }
    end
  end
  table.sort(left, function(one, other) return one.ms < other.ms end)
  for at = 1, #left - $UNDO_DEPTH do
    redis.call('HDEL', job.key($KEY_OPERATIONS), left[at].token)
  end
end

-- Restores items. An item leaves the operation; an operation without items is removed, except for
-- what a repeated call of a worker needs.
local function restore_items(job, target, step, ids, by_worker)
  local operation = target.operation
  local items = operation[$OPERATION_FIELD_ITEMS]
  local can_be_undone = undo_tokens(job)
  local tokens, forgotten, written = {}, {}, {}
  local states = values_of(job.key($KEY_STATES), ids)
  for at, id in ipairs(ids) do
    local inverse, before = items[id], decode_state(states[at])
    local payload = inverse[$OPERATION_FIELD_PAYLOAD]
    if payload then
      redis.call('HSET', job.key($KEY_ITEMS), id, payload)
    end
    written[at] = { id = id, before = before, after = {
      status = inverse[$OPERATION_FIELD_STATUS], version = before.version + 1,
      edited = inverse[$OPERATION_FIELD_EDITED], confidence = inverse[$OPERATION_FIELD_CONFIDENCE],
    } }
    local previous = inverse[$OPERATION_FIELD_BEFORE]
    if previous and can_be_undone[bare(previous)] then
      tokens[#tokens + 1] = id
      tokens[#tokens + 1] = previous
    else
      forgotten[#forgotten + 1] = id
    end
    items[id] = nil
  end
  if step then
    write_items(job, step, written)
  end
  in_batches('HSET', job.key($KEY_UNDOABLE), tokens)
  in_batches('HDEL', job.key($KEY_UNDOABLE), forgotten)
  if next(items) then
    redis.call('HSET', job.key($KEY_OPERATIONS), target.token, cjson.encode(operation))
    return
  end
  redis.call('LREM', job.key($KEY_UNDO), 0, target.token)
  forget_token(job, target.token)
  if by_worker then
    redis.call('HSET', job.key($KEY_OPERATIONS), target.token,
      cjson.encode({ [$OPERATION_FIELD_UNDONE] = ids, [$OPERATION_FIELD_MS] = now_ms }))
    forget_undone(job)
  else
    redis.call('HDEL', job.key($KEY_OPERATIONS), target.token)
  end
end

local WITHOUT_RESULT = {
  [$STEPPER_NOT_STARTED] = true, [$STEPPER_FAILED] = true, [$STEPPER_CANCELLED] = true,
}

-- An ended review waits again if no later step has started; a waiting one has more to do.
local function update_review(job, step, review, at)
  local pending, total = pending_of(job, step)
  local status = job.step(review, $FIELD_STATUS)
  if status == $STEPPER_WAITING_INPUT then
    job.set_step(review, $FIELD_DONE, total - pending)
  end
  local job_status = job.get($RECORD_STATUS)
  if status ~= $STEPPER_COMPLETE or pending == 0
    or (job_status ~= $WORKFLOW_RUNNING and job_status ~= $WORKFLOW_FAILED) then
    return
  end
  for later = at + 1, #job.step_names do
    if not WITHOUT_RESULT[job.step(job.step_names[later], $FIELD_STATUS)] then
      return
    end
  end
  job.set_step(review, $FIELD_DONE, total - pending)
  job.set_step(review, $FIELD_TOTAL, total)
  reopen_review(job, review, pending)
end

operations[$WF_OPERATION_UNDO] = function(key, arg, _, _, key_count)
  local by_worker = key_count == '0'
  local once = not by_worker and once_at(key, arg)
  local job_id, token = ARGV[arg + 4], ARGV[arg + 5]
  local job, reply = job_for(once, job_id)
  if not job then
    return reply
  end
  local target, undone = resolve_token(job, token)
  if not target then
    if undone and by_worker then
      return found($FOUND_ALREADY, { [$FACT_UNDONE] = undone, [$FACT_TOKEN] = token })
    end
    return found($FOUND_MISSING, { [$FACT_WHAT] = $CODE_UNKNOWN_UNDO })
  end
  local all = sort_ids((held_by(job, target.operation)))
  local ids = target.item and { target.item } or all
  if target.item and target.effects then
    return refuse($CODE_UNDO_CONFLICT, { [$FACT_ITEMS] = all, [$FACT_TOKEN] = target.token })
  end
  if target.item and by_worker then -- a repeated call would undo one more change
    return found($FOUND_MISSING, { [$FACT_WHAT] = $CODE_UNKNOWN_UNDO })
  end
  local conflicts = changed_since(job, target, ids)
  if #conflicts > 0 then
    return refuse($CODE_UNDO_CONFLICT, { [$FACT_ITEMS] = conflicts })
  end
  local step, review, at = touched_by(job, ids)
  reply = refusal_by_steps(job, target, ids, at)
  if reply then
    return reply
  end
  if target.effects and not by_worker then
    return keep(once, found($FOUND_BEYOND, { [$FACT_TOKEN] = target.token }))
  end
  conflicts = check_effects(target.operation)
  if #conflicts > 0 then
    return refuse($CODE_UNDO_CONFLICT, { [$FACT_ITEMS] = conflicts })
  end

  end_work(job)
  revert_effects(target.operation)
  restore_items(job, target, step, ids, by_worker)
  if target.effects then
    job.set($RECORD_DRAFT_STATE, $DRAFT_DIRTY)
  end
  emit_event(job, $WF_EVENT_UNDO_APPLIED, step or '', cjson.encode({
    [$FACT_UNDO_TOKEN] = token, [$FACT_COUNT] = #ids,
    [$FACT_ITEMS] = #ids <= MAX_ITEMS_IN_EVENT and ids or nil,
  }))
  if review then
    update_review(job, step, review, at)
  end
  save(job)
  reply = found($FOUND_OK, { [$FACT_UNDONE] = ids, [$FACT_TOKEN] = token })
  return once and keep(once, reply) or reply
end
