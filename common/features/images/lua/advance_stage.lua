-- ADVANCE: record the stage of processing. It never goes back within one upload: a second attempt
-- writes nothing until it gets further than the first one.
--
-- keys  1 record   2 status   3 guard   4 in-flight images   5 results
-- args  1 upload id   2 lease, 3 attempt, 4 token of its core job   5 stage   6 its progress
-- answers
--   ok        written
--   already   the stage was reached before, or the upload has ended: nothing written
--   lost      another upload or attempt is current: nothing written
--   missing   the image does not exist (any more)

operations[$IMG_OPERATION_ADVANCE] = function(key, arg)
  local stage, progress = ARGV[arg + 4], ARGV[arg + 5]
  local image = load_image(key)
  if not image then
    return found($FOUND_MISSING)
  end
  local state = attempt_state(image, ARGV[arg], fence_at(arg + 1))
  if state ~= $FOUND_OK then
    return found(state)
  end
  local before = tonumber(redis.call('HGET', image.shown, $SHOWN_PROGRESS) or '')
  if before and before >= tonumber(progress) then
    return found($FOUND_ALREADY)
  end
  end_work(image)
  redis.call('HSET', image.record, $RECORD_UPDATED_AT, now_rfc3339)
  show(image, stage, progress)
  keep_image(image)
  return found($FOUND_OK)
end
