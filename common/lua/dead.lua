-- DEAD: put aside a message that no job can be tied to, then ack it.
--
-- keys  none of its own
-- args  1 consumer group   2 message id   3 reason   4 original fields as JSON
-- answers
--   ok        copied and acked
--   already   the message was acked before: nothing written

operations[$OPERATION_DEAD] = function(_, arg)
  local group, message_id, reason, fields = unpack(ARGV, arg, arg + 3)
  if #redis.call('XPENDING', queue, group, message_id, message_id, 1) == 0 then
    return { $ANSWER_ALREADY }
  end
  put_aside(message_id, reason, fields)
  redis.call('XACK', queue, group, message_id)
  return { $ANSWER_OK }
end
