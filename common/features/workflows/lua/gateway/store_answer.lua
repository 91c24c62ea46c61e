-- STORE_ANSWER: store the answer to a request, for its repetitions.
--
-- keys  1 stored answer
-- args  1 fingerprint   2 ttl_s   3 status code   4 body
-- answers
--   ok       stored; the claim of the request ends
--   reused   the key was used with another request: nothing written

operations[$WF_OPERATION_STORE_ANSWER] = function(key, arg, last)
  local fingerprint, ttl_s, status_code, body = unpack(ARGV, arg, last)
  local kept = redis.call('HGET', KEYS[key], $REMEMBERED_FINGERPRINT)
  if kept and kept ~= fingerprint then
    return found($FOUND_REUSED)
  end
  redis.call('EXPIRE', KEYS[key], ttl_s)
  redis.call('HSET', KEYS[key], $REMEMBERED_FINGERPRINT, fingerprint,
    $REMEMBERED_CLAIMED_UNTIL_MS, '0', $REMEMBERED_STATUS_CODE, status_code, $REMEMBERED_BODY, body)
  redis.call('EXPIRE', KEYS[key], ttl_s)
  return found($FOUND_OK)
end
