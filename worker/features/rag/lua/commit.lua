-- COMMIT: store a document in its namespace, replacing one with the same id.
--
-- keys  1 lease hash of the job   2 documents   3 order   4 version   5 namespaces
--       6 text   7 chunks   8 vectors   9 upload   10 guard: a hash whose fields are checked; optional
-- args  1 attempt   2 token   3 field of the lease that keeps the outcome; empty to keep none
--       4 namespace   5 document id   6 record, JSON without the time   7 text   8 chunks
--       9 vectors, empty for none   10 most documents   11 most namespaces
--       12 outcome for a new document   13 outcome for a replaced one
--       14 its revision if it must not replace another document; empty if it may
--       then `field, value` pairs that the guard must have
-- answers
--   ok        written; with the outcome
--   already   an earlier try of this job has written it; with the outcome
--   lost      another attempt has begun: nothing written
--   gone      a field of the guard differs: nothing written
--   conflict  another document has this id: nothing written
--   full      the limit of documents is reached: nothing written
--   quota     the limit of namespaces is reached: nothing written

local lease, documents, order, version, namespaces, text, chunks, vectors, upload = unpack(KEYS)
local attempt, token, step, namespace, id, record = unpack(ARGV, 1, 6)

local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, step)
if held[1] ~= attempt or held[2] ~= token then
  return { $ANSWER_LOST }
end
if held[3] then
  return { $ANSWER_ALREADY, held[3] }
end
for at = 15, #ARGV, 2 do
  if redis.call('HGET', KEYS[10], ARGV[at]) ~= ARGV[at + 1] then
    return { $ANSWER_GONE }
  end
end

-- All keys are read before any is written, so that a key of the wrong type fails here and leaves no
-- partial change.
local before = redis.call('HGET', documents, id)
if before and ARGV[14] ~= '' then
  local read, existing = pcall(cjson.decode, before)
  if read and type(existing) == 'table' and existing[$DOCUMENT_REVISION] == ARGV[14] then
    return { $ANSWER_ALREADY, ARGV[12] }
  end
  return { $ANSWER_CONFLICT }
end
redis.call('ZSCORE', order, id)
local last_version = tonumber(redis.call('GET', version) or '')
local known = redis.call('SISMEMBER', namespaces, namespace)
if not before and redis.call('HLEN', documents) >= tonumber(ARGV[10]) then
  return { $ANSWER_FULL }
end
if known == 0 and redis.call('SCARD', namespaces) >= tonumber(ARGV[11]) then
  return { $ANSWER_QUOTA }
end

local clock = redis.call('TIME')
-- A namespace that was deleted starts above all its earlier versions.
local next_version = string.format('%.0f',
  last_version and last_version + 1 or clock[1] * 1000000 + clock[2])
local now_ms = string.format('%.0f', clock[1] * 1000 + math.floor(clock[2] / 1000))

-- The largest values first: if Redis is out of memory, it refuses here and nothing is written.
redis.call('SET', text, ARGV[7])
redis.call('SET', chunks, ARGV[8])
if ARGV[9] == '' then
  redis.call('DEL', vectors)
else
  redis.call('SET', vectors, ARGV[9])
end
redis.call('HSET', documents, id,
  '{"' .. $DOCUMENT_ADDED_TS .. '":' .. now_ms .. ',' .. string.sub(record, 2))
redis.call('ZADD', order, next_version, id)
redis.call('SADD', namespaces, namespace)
redis.call('SET', version, next_version)
redis.call('DEL', upload)
local outcome = before and ARGV[13] or ARGV[12]
if step ~= '' then
  redis.call('HSET', lease, step, outcome)
end
return { $ANSWER_OK, outcome }
