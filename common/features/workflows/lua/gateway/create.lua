-- CREATE: create a job and assign its id; in auto mode its first step starts.
--
-- keys  1 stored answer   2 state of the rate, 3 active jobs of the key (both only with limits)
-- args  1 fingerprint   2 ttl_s of the answer   3 claim ms   4 token of this call
--       5 execution id, 6 core job id, 7 core ttl_s of a step that may start
--       8 consumer group   9 backlog limit   10 µs between requests   11 burst   12 max active
--       13 day of the id   14 definition JSON   15 tenant
--       16 number of fields, then `field, value` of the record
--       then `step, options JSON` for steps with options
-- answers
--   ok, {job_id, started?}   created now, or by an earlier call of the same request
--   reused                   the key was used with another request
--   rate, full, quota        refused for now: nothing written
-- The facts of these are {wait_ms}, {backlog}, {active}.

-- Removes expired jobs from the index: each new job checks a few entries.
local function prune_index(index, number)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', as_integer(now_ms - 1000 * $LONGEST_TTL_S))
  local count = redis.call('ZCARD', index)
  local ranks = { 0, 1 }
  if count > 4 then
    ranks = { 0, 1, number % count, (number * 7) % count }
  end
  for _, rank in ipairs(ranks) do
    local id = redis.call('ZRANGE', index, rank, rank)[1]
    if id and redis.call('EXISTS', names.job .. id) == 0 then
      redis.call('ZREM', index, id)
    end
  end
end

operations[$WF_OPERATION_CREATE] = function(key, arg, last, _, key_count)
  local once, ids = once_at(key, arg), ids_at(arg + 4)
  local admission = admission_at(key, key_count, arg + 7)
  local date, definition, tenant, count = unpack(ARGV, arg + 12, arg + 15)
  local reply = replay(once)
  if reply then
    return reply
  end
  local first_option = arg + 16 + 2 * tonumber(count)
  local fields = { [$RECORD_DEFINITION] = definition }
  for at = arg + 16, first_option - 1, 2 do
    fields[ARGV[at]] = ARGV[at + 1]
  end
  declaration_of(definition) -- fails if it is invalid
  local starts = fields[$RECORD_AUTO_ADVANCE] == '1'
  reply = refusal_of(admission, starts)
  if reply then
    return reply
  end
  local index, own_index = names.index, tenant ~= '' and names.index .. ':' .. tenant
  local indices = { index, own_index or nil }
  check_globals()
  for _, name in ipairs(indices) do
    must_be(name, 'zset')
  end
  if starts then
    check_ids(ids)
  end

  local sequence = names.sequence .. date
  local number, job
  repeat -- the counter may have been lost while the jobs were not
    number = redis.call('INCR', sequence)
    job = job_of($JOB_ID_PREFIX .. date .. string.format('_%03d', number))
  until redis.call('EXISTS', job.record) == 0
  redis.call('EXPIRE', sequence, '$SEQUENCE_TTL_S')

  job.use_definition(definition)
  redis.call('DEL', unpack(job.keys())) -- leftovers of a job with this id whose record was deleted
  for field, value in pairs(fields) do
    job.set(field, value)
  end
  job.set($RECORD_STATUS, $WORKFLOW_QUEUED)
  job.set($RECORD_CURRENT_STEP, job.step_names[1])
  job.set($RECORD_DRAFT_STATE, $DRAFT_CLEAN)
  job.set($RECORD_STARTED_MS, now_text)
  for _, name in ipairs(job.step_names) do
    job.set_step(name, $FIELD_STATUS, $STEPPER_NOT_STARTED)
    job.set_step(name, $FIELD_UPDATED_MS, now_text)
  end
  for at = first_option, last, 2 do
    job.set_step(ARGV[at], $FIELD_OPTIONS, ARGV[at + 1])
  end
  emit_event(job, $WF_EVENT_JOB_CREATED, '',
    '{"' .. $FACT_METADATA .. '":' .. job.get($RECORD_METADATA) .. '}')
  local facts = { [$FACT_JOB_ID] = job.id }
  if starts then
    facts[$FACT_STARTED] = enter_step(job, job.step_names[1], ids).started
  end
  save(job)
  for _, name in ipairs(indices) do
    redis.call('ZADD', name, now_text, job.id)
    prune_index(name, number)
    redis.call('EXPIRE', name, '$LONGEST_TTL_S')
  end
  admit(admission, facts[$FACT_STARTED] and ids.core_job)
  return keep(once, found($FOUND_OK, facts))
end
