-- CREATE: create an image that can be uploaded.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results   6 index of all tenants
--       then the index of the tenant          (only with a tenant)
--       then the entry of the Idempotency-Key (only with a fingerprint)
-- args  1 image id   2 tenant ('' for none)   3 fingerprint of the request ('' without a key)
--       4 seconds the entry is kept   then `field, value` of the record
-- answers
--   ok, {image_id}        created now, or by an earlier call of the same request (lost reply)
--   already, {image_id}   the key created this image before, and it still exists
--   reused                the key was used with another request: nothing written

-- Removes expired images from the index: each new image checks a few entries.
local function prune_index(index)
  redis.call('ZREMRANGEBYSCORE', index, '-inf', as_integer(now_ms - 1000 * $RECORD_TTL_MAX_S))
  local count = redis.call('ZCARD', index)
  local ranks = { 0, 1 }
  if count > 4 then
    ranks = { 0, 1, clock[2] % count, (clock[2] * 7) % count }
  end
  for _, rank in ipairs(ranks) do
    local at = as_integer(rank)
    local id = redis.call('ZRANGE', index, at, at)[1]
    if id and redis.call('EXISTS', tag .. $KEY_RECORD .. id) == 0 then
      redis.call('ZREM', index, id)
    end
  end
end

operations[$IMG_OPERATION_CREATE] = function(key, arg, last)
  local image_id, tenant, fingerprint, once_ttl_s = unpack(ARGV, arg, arg + 3)
  local indices, at = { KEYS[key + 5] }, key + 6
  if tenant ~= '' then
    indices[2], at = KEYS[at], at + 1
  end
  local once = fingerprint ~= '' and KEYS[at]
  local known = once and redis.call('GET', once)
  if known then
    local known_fingerprint, known_id = string.match(known, '^(%S*) (%S+)$')
    if known_id and known_fingerprint ~= fingerprint then
      return found($FOUND_REUSED)
    end
    if known_id and known_id ~= image_id
      and redis.call('EXISTS', tag .. $KEY_RECORD .. known_id) == 1 then
      return found($FOUND_ALREADY, { [$FACT_IMAGE_ID] = known_id })
    end
  end
  local image = load_image(key)
  if image then
    return found($FOUND_OK, { [$FACT_IMAGE_ID] = image_id })
  end
  for _, index in ipairs(indices) do
    must_be(index, 'zset')
  end

  redis.call('HSET', KEYS[key], $RECORD_IMAGE_ID, image_id, $RECORD_STATUS, $IMAGE_QUEUED,
    $RECORD_CREATED_AT, now_rfc3339, $RECORD_UPDATED_AT, now_rfc3339, $RECORD_TENANT, tenant,
    unpack(ARGV, arg + 4, last))
  image = load_image(key)
  redis.call('DEL', image.guard)
  show(image, $STAGE_QUEUED, $PROGRESS_QUEUED)
  keep_image(image)
  for _, index in ipairs(indices) do
    redis.call('ZADD', index, now_text, image_id)
    prune_index(index)
    redis.call('EXPIRE', index, '$RECORD_TTL_MAX_S')
  end
  if once then
    redis.call('SET', once, fingerprint .. ' ' .. image_id, 'EX', once_ttl_s)
  end
  return found($FOUND_OK, { [$FACT_IMAGE_ID] = image_id })
end
