-- PERSIST: write an entry of the result stream into the record, and acknowledge it. For results of a
-- pipeline that knows the streams only: ours writes the record together with the entry.
--
-- keys  1 record   2 status   3 guard   4 images under way   5 results
-- args  1 entry id   2 consumer group   then `field, value` of the entry, all of them
-- answers
--   ok        the record says now what the entry says
--   already   it did before, or a later entry or upload counts; acknowledged, nothing else written
--   missing   there is no such image (any more); likewise

-- Whether the entry tells nothing new, or of an upload that does not count any more.
local function is_old(image, entry_id, sha)
  if image.entry_id == entry_id then
    return true
  end
  if image.results_after ~= '' then
    if not older(image.results_after, entry_id) then
      return true
    end
    -- Opened again, and nobody has uploaded anything since.
    if image.state == $IMAGE_QUEUED and not is_claimed(image) then
      return true
    end
  end
  if not ENDED[image.state] then
    return false
  end
  if image.entry_id ~= '' and older(entry_id, image.entry_id) then
    return true
  end
  return sha and redis.call('HGET', image.record, $RESULT_DIGEST) == sha
end

operations[$IMG_OPERATION_PERSIST] = function(key, arg, last)
  local entry_id, group = ARGV[arg], ARGV[arg + 1]
  local image = load_image(key)
  local fields, sha = { unpack(ARGV, arg + 2, last) }, nil
  for at = 1, #fields, 2 do
    if fields[at] == $RESULT_DIGEST then
      sha = fields[at + 1]
    end
  end
  local answer = $FOUND_OK
  if not image then
    answer = $FOUND_MISSING
  elseif is_old(image, entry_id, sha) then
    answer = $FOUND_ALREADY
  else
    settle(image, fields, '{}', entry_id)
  end
  redis.call('XACK', KEYS[key + 4], group, entry_id)
  return found(answer)
end
