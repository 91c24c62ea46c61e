-- ADD: add a job to a BullMQ queue, unless it is a repetition or the queue is full.
--
-- Wraps one of the package's scripts that add jobs, whose keys and arguments precede these.
-- keys  -9 job hash   -8 record of the Idempotency-Key   -7 deduplication key
--       -6 wait   -5 paused   -4 prioritized   -3 delayed   -2 active   -1 waiting-children
--       (-9 to -7 are the queue's meta key if not used)
-- args  -5 '1' with a custom id   -4 fingerprint ('' without Idempotency-Key)
--       -3 ms that the key is remembered   -2 '1' with a deduplication   -1 max unfinished jobs
--       (0: no limit)
-- answers
--   created, id        it is in the queue
--   replayed, id       the Idempotency-Key created this job before
--   conflict, ''       the Idempotency-Key was used with another request
--   duplicate, id      a job with this id exists
--   deduplicated, id   this existing job is used instead
--   full, number       number of unfinished jobs
--   failed, code       the error code of the package's script

local function add()
$SCRIPT
end

local own_keys, own_args = #KEYS - 9, #ARGV - 5
local job, known, deduplication = KEYS[own_keys + 1], KEYS[own_keys + 2], KEYS[own_keys + 3]
local with_id, fingerprint, kept_ms, deduplicates, max_unfinished =
  unpack(ARGV, own_args + 1, own_args + 5)
max_unfinished = tonumber(max_unfinished)

if fingerprint ~= '' then
  local before = redis.call('GET', known)
  if before then
    if string.sub(before, 1, #fingerprint) ~= fingerprint then
      return { $ANSWER_CONFLICT, '' }
    end
    return { $ANSWER_REPLAYED, string.sub(before, #fingerprint + 2) }
  end
end
local existed = with_id == '1' and redis.call('EXISTS', job) == 1
if max_unfinished > 0 and not existed then
  local unfinished = 0
  for at = own_keys + 4, own_keys + 9 do
    local kind = redis.call('TYPE', KEYS[at])['ok']
    if kind == 'list' then
      unfinished = unfinished + redis.call('LLEN', KEYS[at])
    elseif kind == 'zset' then
      unfinished = unfinished + redis.call('ZCARD', KEYS[at])
    end
  end
  if unfinished >= max_unfinished then
    return { $ANSWER_FULL, unfinished }
  end
end
local held = deduplicates == '1' and redis.call('GET', deduplication)
local id = add()
if type(id) == 'number' then
  return { $ANSWER_FAILED, id }
end
if fingerprint ~= '' and not existed then
  redis.call('SET', known, fingerprint .. ' ' .. id, 'PX', kept_ms)
end
if existed then
  return { $ANSWER_DUPLICATE, id }
end
if held and held == id then
  return { $ANSWER_DEDUPLICATED, id }
end
return { $ANSWER_CREATED, id }
