-- COMPLETE: complete a step and, if the job is to continue, start the next one.
--
-- keys  none
-- args  1 job id   2 step   3 execution id   4 lease, 5 attempt, 6 token of its core job
--       7 execution id, 8 core job id, 9 core ttl_s of a step that may start
--       10 summary   11 errors JSON ('' for none)   12 undo token ('' for none)
--       13 number of items, then `payload JSON, status, confidence` each
--       then `item id, status, required version` for items of earlier steps that it changed
-- answers
--   ok, {started?, undo_token?}   ended by this call
--   already                       this execution ended before
--   lost                          another execution or attempt is current: nothing written
--   missing                       the job does not exist
--   refused, {code, items?}       these items have changed meanwhile, or the effects of the step
--                                 were reverted: nothing written

-- Replaces the items of a step with those in ARGV, in bulk.
local function replace_items(job, name, first, count)
  drop_items(job, name)
  local declared, seq = job.step_at(name), job.number($RECORD_ITEM_SEQ)
  local version = first_version(job, name)
  local payloads, states, order = {}, {}, {}
  for number = 1, count do
    local at = first + 3 * (number - 1)
    local id = declared[$DEFINITION_PREFIX] .. string.format('_%03d', number)
    local state = { status = ARGV[at + 1], version = version, edited = false,
      confidence = ARGV[at + 2] }
    count_item(job, declared, state, 1)
    payloads[2 * number - 1], payloads[2 * number] = id, ARGV[at]
    states[2 * number - 1], states[2 * number] = id, encode_state(state)
    order[2 * number - 1], order[2 * number] = as_integer(seq + number), id
  end
  in_batches('HSET', job.key($KEY_ITEMS), payloads)
  in_batches('HSET', job.key($KEY_STATES), states)
  in_batches('ZADD', job.key($KEY_ORDER), order)
  in_batches('ZADD', job.order_of(name), order)
  job.set($RECORD_ITEM_SEQ, seq + count)
end

-- A step's changes to items of earlier ones: their present states, and conflicting items.
local function changes_at(job, first, last)
  local changes, conflicts = {}, {}
  for at = first, last, 3 do
    local id = ARGV[at]
    local state = read_item(job, id)
    if not state or state.version ~= tonumber(ARGV[at + 2]) then
      conflicts[#conflicts + 1] = id
    end
    changes[#changes + 1] = { id = id, before = state, status = ARGV[at + 1] }
  end
  return changes, conflicts
end

-- Applies them, and stores the undo data together with the effects of the token. Returns the token
-- if there is anything to undo.
local function change_items(job, token, changes, operation)
  local items = operation[$OPERATION_FIELD_ITEMS] or {}
  for _, change in ipairs(changes) do
    local before = change.before
    local state = { status = change.status, version = before.version + 1, edited = before.edited,
      confidence = before.confidence }
    write_item(job, change.id, state, before)
    items[change.id] = {
      [$OPERATION_FIELD_STATUS] = before.status,
      [$OPERATION_FIELD_EDITED] = before.edited, [$OPERATION_FIELD_CONFIDENCE] = before.confidence,
    }
    if token == '' then -- earlier changes can no longer be undone
      redis.call('HDEL', job.key($KEY_UNDOABLE), change.id)
    end
  end
  if token == '' or not (next(items) or operation[$OPERATION_FIELD_EFFECTS]) then
    return ''
  end
  operation[$OPERATION_FIELD_ITEMS] = items
  operation[$OPERATION_FIELD_KIND] = operation[$OPERATION_FIELD_KIND] or $OPERATION_KIND_STEP
  operation[$OPERATION_FIELD_MS] = now_ms
  record_operation(job, token, operation)
  return token
end

local function emit_items_changed(job, name, token, changes)
  if #changes == 0 then
    return
  end
  local ids = {}
  for at, change in ipairs(changes) do
    ids[at] = change.id
  end
  emit_event(job, $WF_EVENT_ITEM_CHANGED, name, cjson.encode({
    [$FACT_OPERATION] = name, [$FACT_COUNT] = #ids, [$FACT_UNDO_TOKEN] = token,
    [$FACT_ITEMS] = #ids <= MAX_ITEMS_IN_EVENT and ids or nil,
  }))
end

operations[$WF_OPERATION_COMPLETE] = function(_, arg, last)
  local running, ids = running_at(arg), ids_at(arg + 6)
  local name, execution = running.step, running.execution
  local summary, errors, token, count = unpack(ARGV, arg + 9, arg + 12)
  count = tonumber(count)
  local job = load_job(running.job)
  if not job then
    return found($FOUND_MISSING)
  end
  local state = execution_state(job, name, execution, running)
  if state ~= $FOUND_OK then
    return found(state)
  end
  local first_change = arg + 13 + 3 * count
  local changes, conflicts = changes_at(job, first_change, last)
  if #conflicts > 0 then
    return refuse($CODE_VERSION_CONFLICT, { [$FACT_ITEMS] = conflicts })
  end
  local effects_token = job.step(name, $FIELD_EFFECTS)
  if effects_token ~= ''
    and redis.call('HEXISTS', job.key($KEY_OPERATIONS), effects_token) == 0 then
    return refuse($CODE_STEP_LOST)
  end
  local kept = token ~= '' and redis.call('HGET', job.key($KEY_OPERATIONS), token)
  local operation = kept and cjson.decode(kept) or {}
  check_ids(ids)

  end_work(job)
  replace_items(job, name, arg + 13, count)
  token = change_items(job, token, changes, operation)
  emit_items_changed(job, name, token, changes)
  forget_execution(job, $KEY_PARTS, execution)
  job.set_step(name, $FIELD_ERRORS, errors)
  job.set_step(name, $FIELD_UNDO_TOKEN, token)
  local outcome = complete_step(job, name, summary, as_integer(count), ids)
  save(job)
  return found($FOUND_OK, { [$FACT_STARTED] = outcome.started,
    [$FACT_UNDO_TOKEN] = token ~= '' and token or nil })
end
