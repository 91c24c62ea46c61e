-- DEAD: put aside a message that no job can be tied to, then ack it.
--
-- keys  1 dead-letter stream
-- args  1 consumer group   2 message id   3 dead letters kept   4 reason
--       5 original fields as JSON
-- answers
--   ok        copied and acked
--   already   the message was acked before: nothing written

operations[$OPERATION_DEAD] = function(key, arg)
  local letters = KEYS[key]
  local group, message_id, cap, reason, fields = unpack(ARGV, arg, arg + 4)
  if #redis.call('XPENDING', queue, group, message_id, message_id, 1) == 0 then
    return { $ANSWER_ALREADY }
  end
  redis.call('XADD', letters, 'MAXLEN', '~', cap, '*',
    $DEAD_REASON, reason, $DEAD_MESSAGE_ID, message_id, $DEAD_TS, now_text,
    $DEAD_FIELDS, fields)
  redis.call('XACK', queue, group, message_id)
  return { $ANSWER_OK }
end
