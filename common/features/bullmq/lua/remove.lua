-- REMOVE: take a job out of its queue, or ask whoever runs it to end it.
--
-- Around the package's script that removes, which has the keys and arguments before these.
-- keys  -2 flag of a job that somebody wants to end   -1 lock
-- args  -3 job id   -2 channel of such wishes   -1 ms that the flag is kept
-- answers
--   removed    it is gone, with its children
--   canceling  it runs; a worker of Sluice will end it, others do not know how
--   scheduled  it is the next of a scheduler, which would make another
--   locked     one of its children runs
--   missing    there is no such job, whatever else has that name

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
