-- IMAGE: shared by the operations on an image. Each has the same five keys first:
--   1 record   2 status   3 guard   4 in-flight images   5 results
--
-- An operation reads and checks first, then writes: a script is not rolled back. `load_image` fails
-- if one of these keys has the wrong type, before anything is written.
--
-- An operation that ends work calls `end_work(image)` before its first write (see MEMORY in the
-- prelude). Status and guard are kept $STATUS_TTL_S seconds after their last change, and so is a
-- record without an upload; otherwise the record has its own ttl_s.

-- Value of `results_after` if an upload without a result was abandoned.
local NO_RESULT_YET = '0-0'

-- Unix seconds as RFC 3339. Years begin in March here, so that the leap day is their last.
local function rfc3339(seconds)
  local days = math.floor(seconds / 86400)
  local second = seconds - days * 86400
  local day = days + 719468 -- since 1 March of the year 0
  local era = math.floor(day / 146097)
  day = day - era * 146097
  local year = math.floor((day - math.floor(day / 1460) + math.floor(day / 36524)
    - math.floor(day / 146096)) / 365)
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  return string.format('%04d-%02d-%02dT%02d:%02d:%02dZ', year, month, day,
    math.floor(second / 3600), math.floor(second / 60) % 60, second % 60)
end

local now_rfc3339 = rfc3339(tonumber(clock[1]))

local ENDED = { [$IMAGE_PROCESSED] = true, [$IMAGE_FAILED] = true }
-- Fields of a record about the outcome of an upload, and those that identify the upload.
local OUTCOME_FIELDS = {
  $RESULT_STORAGE_KEY, $RESULT_DIGEST, $RESULT_ETAG, $RESULT_FILE_SIZE, $RESULT_CONTENT_TYPE,
  $RESULT_ORIGINAL_WIDTH, $RESULT_ORIGINAL_HEIGHT, $RESULT_PROCESSED_WIDTH,
  $RESULT_PROCESSED_HEIGHT, $RESULT_PROCESSED_AT, $FAILURE_ERROR_CODE, $FAILURE_ERROR_MESSAGE,
  $FAILURE_FAILED_AT, $RECORD_OUTCOME, $RECORD_DETAILS, $RECORD_RESULT_ENTRY_ID,
}
local UPLOAD_FIELDS = {
  $RECORD_UPLOAD_ID, $RECORD_UPLOAD_DEADLINE_MS, $RECORD_JOB_ID, $RECORD_UPLOADED_TYPE,
  $RECORD_SOURCE_BYTES, $RECORD_SOURCE_DIGEST,
}

local function check_image(key)
  for at, kind in ipairs({ 'hash', 'hash', 'string', 'zset', 'stream' }) do
    must_be(KEYS[key + at - 1], kind)
  end
end

-- nil if the image does not exist.
local function load_image(key)
  check_image(key)
  local image = { record = KEYS[key], shown = KEYS[key + 1], guard = KEYS[key + 2],
    inflight = KEYS[key + 3], results = KEYS[key + 4] }
  local values = redis.call('HMGET', image.record, $RECORD_STATUS, $RECORD_IMAGE_ID,
    $RECORD_UPLOAD_ID, $RECORD_UPLOAD_DEADLINE_MS, $RECORD_JOB_ID, $RECORD_TTL_S,
    $RECORD_RESULTS_AFTER, $RECORD_RESULT_ENTRY_ID, $RECORD_TENANT)
  if not values[1] then
    return nil
  end
  image.state, image.id, image.upload = values[1], values[2] or '', values[3] or ''
  image.deadline_ms, image.job_id = tonumber(values[4] or '') or 0, values[5] or ''
  image.ttl_s, image.results_after = values[6] or '', values[7] or ''
  image.entry_id, image.tenant = values[8] or '', values[9] or ''
  return image
end

-- True if an upload holds the guard, even if it has stalled.
local function is_claimed(image)
  return redis.call('EXISTS', image.guard) == 1
end

-- A guard without an upload id in the record belongs to another gateway, and ends by its TTL alone.
local function is_stale(image)
  return image.state == $IMAGE_QUEUED and image.upload ~= '' and image.deadline_ms <= now_ms
end

-- True if this upload holds the guard and was not submitted.
local function is_uploading(image, upload)
  return image.state == $IMAGE_QUEUED and image.upload == upload
end

-- How long the record is kept; the stored value may be invalid.
local function kept_s(image)
  local opened_again = image.results_after ~= '' and image.results_after ~= NO_RESULT_YET
  if image.state == $IMAGE_QUEUED and not opened_again then
    return '$STATUS_TTL_S'
  end
  local ttl = not string.find(image.ttl_s, '%D') and tonumber(image.ttl_s)
  if ttl and ttl >= 1 and ttl <= $RECORD_TTL_MAX_S then
    return image.ttl_s
  end
  return '$TTL_MAX_S'
end

-- The first write, which Redis accepts even without memory.
local function end_work(image)
  redis.call('EXPIRE', image.record, kept_s(image))
end

-- Restarts the lifetime of all keys.
local function keep_image(image)
  redis.call('EXPIRE', image.record, kept_s(image))
  redis.call('EXPIRE', image.shown, '$STATUS_TTL_S')
  redis.call('EXPIRE', image.guard, '$STATUS_TTL_S')
end

-- Writes the public status. `failure` only with the stage `failed`.
local function show(image, stage, progress, failure)
  redis.call('HSET', image.shown, $SHOWN_STAGE, stage, $SHOWN_PROGRESS, progress,
    $SHOWN_UPDATED_AT, now_rfc3339)
  if failure then
    redis.call('HSET', image.shown, $SHOWN_ERROR, failure)
  else
    redis.call('HDEL', image.shown, $SHOWN_ERROR)
  end
  redis.call('EXPIRE', image.shown, '$STATUS_TTL_S')
  hint(image.shown)
end

-- Claims the guard of an image; false if another upload holds it.
local function claim_guard(image)
  return redis.call('SET', image.guard, $UPLOAD_GUARD_VALUE, 'NX', 'EX', '$STATUS_TTL_S') ~= false
end

-- Renews the guard, or restores an expired one.
local function set_guard(image)
  redis.call('SET', image.guard, $UPLOAD_GUARD_VALUE, 'EX', '$STATUS_TTL_S')
end

-- Resets the image to the state before the upload. Starts with a write that needs no memory.
local function reset_upload(image)
  redis.call('DEL', image.guard)
  redis.call('HDEL', image.record, unpack(UPLOAD_FIELDS))
  redis.call('HSET', image.record, $RECORD_STATUS, $IMAGE_QUEUED,
    $RECORD_UPDATED_AT, now_rfc3339)
  image.state, image.upload, image.job_id = $IMAGE_QUEUED, '', ''
  show(image, $STAGE_QUEUED, $PROGRESS_QUEUED)
  redis.call('ZREM', image.inflight, image.id)
  keep_image(image)
end

-- FENCE: `{lease, attempt, token}` from three arguments of the store.
local function fence_at(arg)
  return { lease = ARGV[arg], attempt = ARGV[arg + 1], token = ARGV[arg + 2] }
end

-- The state of an attempt: ok, already (the upload has ended) or lost.
local function attempt_state(image, upload, fence)
  if image.upload ~= upload then
    return $FOUND_LOST
  end
  if ENDED[image.state] then
    return $FOUND_ALREADY
  end
  if image.state ~= $IMAGE_PROCESSING or not is_held(fence) then
    return $FOUND_LOST
  end
  return $FOUND_OK
end

-- The stored outcome, as a fact.
local function outcome_of(image)
  local kept = redis.call('HGET', image.record, $RECORD_OUTCOME)
  return { [$FACT_OUTCOME] = kept and cjson.decode(kept) or nil }
end

-- Ends an upload. `fields` are the names and values of the result entry; status, record and entry
-- are written together. `entry_id` if another process has written the entry.
local function settle(image, fields, details, entry_id)
  local outcome, record = {}, {}
  for at = 1, #fields, 2 do
    outcome[fields[at]] = fields[at + 1]
    record[at], record[at + 1] = fields[at], fields[at + 1]
  end
  image.state = outcome[$RESULT_STATUS]
  end_work(image)
  entry_id = entry_id or redis.call('XADD', image.results, 'MAXLEN', '~', '$RESULTS_KEPT', '*',
    unpack(fields))
  for _, more in ipairs({ $RECORD_OUTCOME, cjson.encode(outcome), $RECORD_DETAILS, details,
    $RECORD_RESULT_ENTRY_ID, entry_id, $RECORD_UPDATED_AT, now_rfc3339 }) do
    record[#record + 1] = more
  end
  redis.call('HDEL', image.record, $RECORD_UPLOAD_DEADLINE_MS, unpack(OUTCOME_FIELDS))
  redis.call('HSET', image.record, unpack(record))
  if image.state == $IMAGE_PROCESSED then
    show(image, $STAGE_DONE, $PROGRESS_DONE)
  else
    show(image, $STAGE_FAILED, $PROGRESS_FAILED, outcome[$FAILURE_ERROR_MESSAGE] or '')
  end
  set_guard(image)
  redis.call('ZREM', image.inflight, image.id)
  return { [$FACT_OUTCOME] = outcome }
end
