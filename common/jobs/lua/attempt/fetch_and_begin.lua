-- FETCH_AND_BEGIN: read messages and begin their jobs in one call. A worker with free slots and a
-- backlog sends it together with the outcomes of jobs that have just ended.
--
-- keys  none: the keys of the jobs are derived from the messages
-- args  1 token of this try   2 max messages   3 prefix of the keys of job hashes
--       4 if this try may have been made before, with its reply lost: the first message id that it
--       may have begun, as a range start of XPENDING; else ''
--       then `task, max attempts` for each task with its own limit; or `task, do_not_begin`: its
--       messages are read, but not begun
-- answers
--   ok, messages, then for each message the answer of BEGIN, or its error, or an empty array:
--                 then it was not begun, because of do_not_begin or because the job id is
--                 invalid. The token of an attempt is the token of this try, a dot and the
--                 message id

-- Job id and task of a message; a third-party producer may have left them out.
local function job_and_task_of(fields)
  local job_id, task
  for index = 1, #fields, 2 do
    if fields[index] == $QUEUE_JOB_ID then
      job_id = fields[index + 1]
    elseif fields[index] == $QUEUE_TASK then
      task = fields[index + 1]
    end
  end
  return job_id, task
end

-- The messages that this try has begun already: pending for this consumer, with this token.
local function begun_before(group, consumer, prefix, token, start)
  local found = {}
  repeat
    local page = redis.call('XPENDING', queue, group, start, '+', 100, consumer)
    for _, pending in ipairs(page) do
      local message_id = pending[1]
      local entry = redis.call('XRANGE', queue, message_id, message_id)[1]
      local job_id = entry and job_and_task_of(entry[2])
      local held = job_id and redis.pcall('HGET', prefix .. job_id .. $CORE_LEASE, $LEASE_TOKEN)
      if held == token .. '.' .. message_id then
        found[#found + 1] = entry
      end
      start = '(' .. message_id
    end
  until #page < 100
  return found
end

operations[$OPERATION_FETCH_AND_BEGIN] = function(key, arg, last, identity)
  local token, max_messages, prefix, repeated = unpack(ARGV, arg, arg + 3)
  local group, consumer = ARGV[identity], ARGV[identity + 1]
  local entries = repeated ~= '' and begun_before(group, consumer, prefix, token, repeated) or {}
  if #entries == 0 then
    local read = redis.call('XREADGROUP', 'GROUP', group, consumer, 'COUNT', max_messages,
      'STREAMS', queue, '>')
    entries = read and read[1][2] or {}
  end

  local max_attempts_of = {}
  for at = arg + 4, last, 2 do
    max_attempts_of[ARGV[at]] = ARGV[at + 1]
  end
  local reply = { $ANSWER_OK, entries }
  for index, entry in ipairs(entries) do
    local message_id, job_id, task = entry[1], job_and_task_of(entry[2])
    local answer, max_attempts = {}, max_attempts_of[task] or ''
    if max_attempts ~= $DO_NOT_BEGIN and job_id and string.find(job_id, '^[%w._-]+$') then
      local ok
      local job = prefix .. job_id
      ok, answer = pcall(begin, identity, job, job .. $CORE_EVENTS, job .. $CORE_LEASE, job_id,
        message_id, token .. '.' .. message_id, max_attempts)
      if not ok then
        answer = failed(answer)
      end
    end
    reply[index + 2] = answer
  end
  return reply
end
