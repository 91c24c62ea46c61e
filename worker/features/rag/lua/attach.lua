-- ATTACH: add missing vectors to a document, unless it has changed meanwhile.
--
-- keys  1 documents   2 order   3 version   4 vectors
-- args  1 document id   2 its record as it was read   3 its record with the embedder   4 vectors
-- answers
--   ok        written
--   missing   the document was deleted or replaced: nothing written

local documents, order, version, vectors = unpack(KEYS)
local id, before, after = unpack(ARGV, 1, 3)

if redis.call('HGET', documents, id) ~= before then
  return { $ANSWER_MISSING }
end
redis.call('ZSCORE', order, id)
local last_version = tonumber(redis.call('GET', version) or '')
local clock = redis.call('TIME')
local next_version = string.format('%.0f',
  last_version and last_version + 1 or clock[1] * 1000000 + clock[2])
redis.call('SET', vectors, ARGV[4])
redis.call('HSET', documents, id, after)
redis.call('ZADD', order, next_version, id)
redis.call('SET', version, next_version)
return { $ANSWER_OK }
