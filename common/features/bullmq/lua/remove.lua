-- REMOVE: remove a job from its queue, or request the end of a running one.
--
-- Wraps the package's script that removes jobs, whose keys and arguments precede these.
-- keys  -2 cancel flag of the job   -1 lock
-- args  -3 job id   -2 channel of cancel requests   -1 ms that the flag is kept
-- answers
--   removed    it is gone, with its children
--   canceling  it is running; a Sluice worker will end it, other workers cannot
--   scheduled  it is the next job of a scheduler, which would create another
--   locked     one of its children is running
--   missing    there is no such job; another key may have that name

local function remove()
$SCRIPT
end

local job, cancel, lock = KEYS[1], KEYS[#KEYS - 1], KEYS[#KEYS]
local id, channel, kept_ms = unpack(ARGV, #ARGV - 2, #ARGV)
if redis.call('TYPE', job)['ok'] ~= 'hash' or redis.call('HEXISTS', job, $FIELD_NAME) == 0
  or redis.call('HEXISTS', job, $FIELD_TIMESTAMP) == 0 then
  return { $ANSWER_MISSING }
end
if redis.call('EXISTS', lock) == 1 then
  redis.call('SET', cancel, '1', 'PX', kept_ms)
  redis.call('PUBLISH', channel, id)
  return { $ANSWER_CANCELING }
end
local code = remove()
if code == 1 then
  return { $ANSWER_REMOVED }
end
return { code == 0 and $ANSWER_LOCKED or $ANSWER_SCHEDULED }
