-- REMOVE: delete a document; deleting the last one deletes the namespace, unless it has an
-- ontology.
--
-- keys  1 lease hash of the job   2 documents   3 order   4 version   5 namespaces
--       6 text   7 chunks   8 vectors   9 vector set   10 ontology   11 claims
-- args  1 attempt   2 token   3 field of the lease that keeps the outcome
--       4 namespace   5 document id
--       6 outcome if the document existed   7 outcome if it did not
-- answers
--   ok        done; with the outcome
--   already   an earlier try of this job has done it; with the outcome
--   lost      another attempt has begun: nothing written

local lease, documents, order, version, namespaces, text, chunks, vectors, vector_set, ontology,
  claims = unpack(KEYS)
local attempt, token, step, namespace, id = unpack(ARGV, 1, 5)

local held = redis.call('HMGET', lease, $LEASE_ATTEMPT, $LEASE_TOKEN, step)
if held[1] ~= attempt or held[2] ~= token then
  return { $ANSWER_LOST }
end
if held[3] then
  return { $ANSWER_ALREADY, held[3] }
end

local before = redis.call('HEXISTS', documents, id) == 1
redis.call('ZSCORE', order, id)
redis.call('SISMEMBER', namespaces, namespace)
local last_version = tonumber(redis.call('GET', version) or '')
redis.call('HEXISTS', claims, id)

redis.call('DEL', text, chunks, vectors)
redis.call('ZREM', order, id)
if before then
  redis.call('HDEL', documents, id)
  redis.call('HDEL', claims, $CLAIM_DOCUMENT .. id)
  local is_empty = redis.call('HLEN', documents) == 0
  if is_empty then
    redis.call('DEL', order, vector_set)
  end
  if is_empty and redis.call('EXISTS', ontology) == 0 then
    redis.call('DEL', version, claims)
    redis.call('SREM', namespaces, namespace)
  else
    local clock = redis.call('TIME')
    local next_version = string.format('%.0f',
      last_version and last_version + 1 or clock[1] * 1000000 + clock[2])
    redis.call('SET', version, next_version)
  end
end
local outcome = before and ARGV[6] or ARGV[7]
redis.call('HSET', lease, step, outcome)
return { $ANSWER_OK, outcome }
